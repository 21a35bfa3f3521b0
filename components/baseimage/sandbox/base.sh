# What the package managers install without root goes to ~/.local, whose bin is on the PATH.
cd /home/user
mkdir -p .local/bin .config/go .cargo
echo 'prefix=/home/user/.local' >.npmrc
echo 'GOBIN=/home/user/.local/bin' >.config/go/env
printf '[install]\nroot = "/home/user/.local"\n' >.cargo/config.toml
chown -R user:user .
ln -s ../../bin/fdfind /usr/local/bin/fd
