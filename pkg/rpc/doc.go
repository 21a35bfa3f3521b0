// Package rpc carries calls and streams between the processes of runtime:
// many at once over one connection, which is TLS 1.3 over TCP or a unix
// socket. Interfaces are written in api/<domain>/rpc.yml; rpcgen generates
// their messages, clients and registration.
//
// # Connection
//
// Both sides begin with a HELLO frame and then exchange frames, each a header
// of 12 bytes and a payload of at most 64 KiB:
//
//	 0      3      4      5                    12
//	+------+------+------+--------------------+---------
//	|length| type |flags | call id            | payload
//	+------+------+------+--------------------+---------
//
// All numbers are big-endian. Call ids are chosen by the side that dialled,
// are odd, increase in the order of the CALL frames and are never reused (56
// bits). Even ids, the versions in HELLO and the free frame types are the room
// for calls in the other direction, QUIC, topics and capabilities.
//
//	type     payload
//	HELLO    "rRPC", version, lowest version understood, settings as pairs of
//	         uvarints (unknown settings are ignored)
//	CALL     call header, then the request, unless BODY says that it follows
//	         as the first message of DATA frames
//	DATA     a message or a part of one (see below), or raw bytes
//	REPLY    ends the call: the response, or with ERROR an encoded error, or
//	         with BODY nothing, the response being the last message of DATA
//	CANCEL   the caller gave up; the call is over for both sides
//	WINDOW   uint32: so many more bytes may be sent on this call (id 0: on the
//	         connection)
//	PING     8 bytes, sent back with ACK
//	GOAWAY   call id: calls above it were not and will not be started
//
// The call header is: flags, method name, and as the flags say the time left
// in microseconds, request id, trace context, and one extension that is
// skipped. Every string has one byte of length in front.
//
// A message that fits into one DATA frame is one DATA frame. A larger one
// starts with LARGE, whose payload is the total length (uint32) and the first
// part; every part but the last carries MORE. END says that the sender will
// send no more. Streams of raw bytes use DATA frames without structure.
//
// # Flow control
//
// Every DATA frame costs its length plus its header, of the window of its call
// and of that of the connection. Windows are given back as the application
// reads. The connection's window covers the initial window of as many calls as
// the connection may have, plus a budget out of which the windows of fast
// readers grow; so a stalled reader delays only its own call.
// What a connection can make this side hold is bounded by that window, by one
// frame per call, and by a budget for messages that are being put together.
//
// # Outcome
//
// A caller must know whether the call took place. OutcomeOf classifies an
// error: not started (the call certainly had no effect), failed (the call was
// carried out and ended in this error), or unknown (the connection, deadline or
// caller ended the call in between). The client itself repeats a call that was
// not started, and one of unknown outcome only if the method is idempotent.
//
// # Access
//
// Connections are limited by class (ConnLimits): over unix sockets, with a client
// certificate, anonymous, and in the TLS handshake. Permission and role say
// whether an identity may call a method; a role that is bound to projects, and
// what the request says of its project (Target), whether it may make this call.
// Both are decided before the handler is entered, which learns the rest from
// GrantFrom. Refuse and Recheck take access away from open connections.
//
// # Locks
//
// conn.mu (calls, write buffer, send windows), then queue.mu (what was received
// for one call), then callContext.mu. None is held during IO or while a handler
// or a caller's function runs.
package rpc
