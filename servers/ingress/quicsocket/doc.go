// Package quicsocket is a UDP socket with QUIC that one process after another serves,
// while connections of the earlier ones go on.
//
// All processes have the same socket. One of them reads it: the newest that serves.
// Each process has a generation, one more than that of its predecessor, which stands in
// every connection id that it issues:
//
//	1 byte   generation
//	7 bytes  random
//	4 bytes  start of HMAC-SHA256 of the bytes before, so that ids that clients
//	         choose for their first packets are not taken for one of these
//
// The process that reads the socket sends packets with the id of another generation to
// its predecessor, which handles them or sends them on to its own. Each process writes
// its answers to the shared socket itself.
//
// # The link
//
// Two neighbours are connected by a pair of SOCK_SEQPACKET sockets, one of which the
// predecessor makes and passes with the UDP socket. The first byte is the kind of a message:
//
//	S  to the predecessor: the successor serves; stop reading the UDP socket
//	R  to the successor: it is read no longer
//	N  to the predecessor: the successor has given the socket to the next one
//	P  to the predecessor: a packet
//
// A packet is the length of the client's address (1 byte), the address
// (netip.AddrPort.MarshalBinary), the length of the control messages (1 byte), the
// control messages, and the datagram. Packets that find the link full are lost, as in the
// network.
//
// A process whose successor is killed reads the socket again, unless the successor had
// given it on. A packet for a predecessor that is gone is answered by a stateless reset,
// so that the client connects again at once.
package quicsocket
