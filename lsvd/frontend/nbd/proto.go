package nbd

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"miren.dev/runtime/pkg/errs"
)

// Numbers of the protocol, all big-endian on the wire.
const (
	magicServer  = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption  = 0x49484156454f5054 // "IHAVEOPT"
	magicReply   = 0x0003e889045565a9
	magicRequest = 0x25609513
	magicSimple  = 0x67446698
	magicChunk   = 0x668e33ef

	flagFixedNewstyle = 1
	flagNoZeroes      = 2

	optExportName  = 1
	optAbort       = 2
	optList        = 3
	optStartTLS    = 5
	optInfo        = 6
	optGo          = 7
	optStructured  = 8
	optListContext = 9
	optSetContext  = 10

	repAck         = 1
	repServer      = 2
	repInfo        = 3
	repContext     = 4
	repErrUnsup    = 1<<31 | 1
	repErrPolicy   = 1<<31 | 2
	repErrInvalid  = 1<<31 | 3
	repErrTLSReqd  = 1<<31 | 5
	repErrUnknown  = 1<<31 | 6
	repErrTooBig   = 1<<31 | 9
	infoExport     = 0
	infoName       = 1
	infoBlockSize  = 3
	contextID      = 1
	contextName    = "base:allocation"
	contextPattern = "base:"

	txHasFlags    = 1
	txReadOnly    = 2
	txFlush       = 4
	txFUA         = 8
	txTrim        = 32
	txWriteZeroes = 64
	txDF          = 128
	txMultiConn   = 256

	cmdRead        = 0
	cmdWrite       = 1
	cmdDisconnect  = 2
	cmdFlush       = 3
	cmdTrim        = 4
	cmdWriteZeroes = 6
	cmdBlockStatus = 7

	cmdFlagFUA    = 1
	cmdFlagNoHole = 2
	cmdFlagDF     = 4
	cmdFlagReqOne = 8

	chunkDone        = 1
	chunkNone        = 0
	chunkData        = 1
	chunkHole        = 2
	chunkBlockStatus = 5
	chunkError       = 1<<15 | 1

	stateHole = 1 | 2 // a hole that reads as zeros

	minBlock     = 1
	bestBlock    = 4096
	maxPayload   = 32 << 20
	maxOption    = 16 << 10
	maxName      = 4096
	maxExtents   = 8192
	maxOptions   = 1000 // of one handshake
	maxConns     = 1024 // of a server
	maxInFlight  = 128  // requests of one connection
	maxBusyBytes = 64 << 20
)

// Errors of the protocol.
const (
	nbdEPERM     = 1
	nbdEIO       = 5
	nbdEINVAL    = 22
	nbdENOSPC    = 28
	nbdESHUTDOWN = 108
)

// code is the protocol's error for err.
func code(err error) uint32 {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, unix.ENOSPC), errs.Is(err, errs.ResourceExhausted):
		return nbdENOSPC
	case errs.Is(err, errs.InvalidArgument):
		return nbdEINVAL
	case errs.Is(err, errs.PermissionDenied):
		return nbdEPERM
	case errors.Is(err, context.Canceled):
		return nbdESHUTDOWN
	}
	return nbdEIO
}
