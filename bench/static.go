package main

import (
	"bytes"
	"encoding/binary"
	"runtime"
)

const staticPath = "/tmp/static"

// staticProgram returns an ELF program without libraries that only exits, with
// code 0.
func staticProgram() []byte {
	machine, code := uint16(62), []byte{0x31, 0xff, 0xb8, 0xe7, 0, 0, 0, 0x0f, 0x05} // xor edi, edi; mov eax, exit_group; syscall
	if runtime.GOARCH == "arm64" {
		machine = 183
		code = []byte{0, 0, 0x80, 0xd2, 0xc8, 0x0b, 0x80, 0xd2, 1, 0, 0, 0xd4} // mov x0, 0; mov x8, exit_group; svc 0
	}
	const (
		base    = 0x400000
		headers = 64 + 56
	)
	size := uint64(headers + len(code))
	var b bytes.Buffer
	for _, v := range []any{
		[16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, uint16(2), machine, uint32(1), uint64(base + headers), uint64(64), uint64(0), uint32(0), uint16(64), uint16(56), uint16(1), uint16(64), uint16(0), uint16(0),
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(0x1000), code,
	} {
		_ = binary.Write(&b, binary.LittleEndian, v) // to memory
	}
	return b.Bytes()
}
