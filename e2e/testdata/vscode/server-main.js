// A server that is started and used as that of VS Code Remote is: it listens on a port
// of 127.0.0.1, tells it in its log, and serves HTTP and WebSocket to those who have its
// token. A message is answered with what a child process makes of it.
const { createHash } = require('node:crypto');
const { execFile } = require('node:child_process');
const http = require('node:http');

const option = (name) => process.argv.find((a) => a.startsWith(`--${name}=`))?.split('=')[1];
const token = option('connection-token');

const server = http.createServer((req, res) => {
  const url = new URL(req.url, 'http://localhost');
  if (url.pathname !== '/version') {
    res.writeHead(404).end();
  } else if (url.searchParams.get('tkn') !== token) {
    res.writeHead(403).end('Forbidden');
  } else {
    res.end(`test ${process.pid}`);
  }
});

// frame is a message of text in a frame of WebSocket.
function frame(text) {
  const payload = Buffer.from(text);
  if (payload.length < 126) return Buffer.concat([Buffer.from([0x81, payload.length]), payload]);
  return Buffer.concat([Buffer.from([0x81, 126, payload.length >> 8, payload.length & 255]), payload]);
}

server.on('upgrade', (req, socket) => {
  if (new URL(req.url, 'http://localhost').searchParams.get('tkn') !== token) return socket.destroy();
  const accept = createHash('sha1').update(req.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest('base64');
  socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`);
  let left = Buffer.alloc(0);
  socket.on('error', () => socket.destroy());
  socket.on('end', () => socket.end());
  socket.on('data', (data) => {
    left = Buffer.concat([left, data]);
    while (left.length >= 6) {
      const length = left[1] & 127;
      if (length > 125 || left.length < 6 + length) return;
      const mask = left.subarray(2, 6);
      const message = Buffer.from(left.subarray(6, 6 + length).map((b, i) => b ^ mask[i % 4]));
      const kind = left[0] & 15;
      left = left.subarray(6 + length);
      if (kind === 8) return socket.end(Buffer.from([0x88, 0]));
      execFile('/bin/sh', ['-c', message.toString()], (err, stdout) => socket.write(frame(err ? String(err) : stdout)));
    }
  });
});

server.listen(Number(option('port')), option('host'), () => console.log(`Extension host agent listening on ${server.address().port}`));
