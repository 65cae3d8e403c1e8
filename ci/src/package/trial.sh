# Trial of the package as root in a fresh Debian; run by `cargo ci package`.

export DEBIAN_FRONTEND=noninteractive
apt-get install -y --no-install-recommends /root/nyala.deb

# What it installs.
nyala --version
nyala-backup --version
getent passwd nyala
test "$(stat -c '%U:%G %a' /etc/nyala/master.toml)" = 'root:nyala 640'
test -f /usr/lib/systemd/system/nyala-master.service
test -f /usr/share/man/man1/nyala-tablet-server.1.gz
test -f /usr/share/man/man1/nyala-sql.1.gz
test -f /usr/share/bash-completion/completions/nyala-sql
systemd-analyze verify --man=no /usr/lib/systemd/system/nyala-master.service

# SQL on data in a directory.
nyala sql --dir /tmp/sql --format csv -c 'CREATE TABLE t (k INT PRIMARY KEY) PARTITION BY HASH (k) PARTITIONS 2' \
    -c 'INSERT INTO t VALUES (1)' -c 'SELECT k + 1 AS next FROM t' | grep '^2$'

# A service without directories does not start, and says why.
code=0
nyala master --config /etc/nyala/master.toml 2> /tmp/refused || code=$?
test "$code" = 2
grep fs-wal-dir /tmp/refused

# A server runs as the unit starts it, and stops in order.
printf 'fs_wal_dir = "/var/lib/nyala/master/wal"\nrpc_bind_addresses = "127.0.0.1:7951"\nwebserver_enabled = false\n' \
    > /etc/nyala/master.toml
install -d -o nyala -g nyala /var/lib/nyala /var/lib/nyala/master
setpriv --reuid nyala --regid nyala --clear-groups nyala master --config /etc/nyala/master.toml &
server=$!
for attempt in $(seq 300); do
    nyala table list --masters 127.0.0.1:7951 && break
    test "$attempt" != 300
    sleep 0.1
done
kill -TERM "$server"
wait "$server"
test -f /var/lib/nyala/master/wal/instance

# An upgrade keeps the settings and the mode that were changed, and does not miss a file that was removed.
rm /etc/nyala/tablet-server.toml
chmod 0440 /etc/nyala/master.toml
apt-get install -y --no-install-recommends --reinstall -o Dpkg::Options::=--force-confold /root/nyala.deb
grep 7951 /etc/nyala/master.toml
test "$(stat -c '%U:%G %a' /etc/nyala/master.toml)" = 'root:nyala 440'
test ! -e /etc/nyala/tablet-server.toml

# A service that does not restart is reported, and the package is configured.
mkdir -p /run/systemd/system /tmp/stand-in
printf '#!/bin/sh\ntest "$1" != try-restart\n' > /tmp/stand-in/systemctl
chmod +x /tmp/stand-in/systemctl
PATH="/tmp/stand-in:$PATH" dpkg --force-confold --install /root/nyala.deb > /tmp/upgraded 2>&1 || code=$?
cat /tmp/upgraded
grep 'a service did not restart' /tmp/upgraded
test "$(dpkg-query --show --showformat='${db:Status-Status}' nyala)" = installed
rm -r /run/systemd/system

# A purge removes all but the data.
apt-get purge -y nyala
test ! -e /usr/bin/nyala
test ! -e /usr/bin/nyala-sql
test ! -e /usr/bin/nyala-backup
test ! -e /etc/nyala/master.toml
test -f /var/lib/nyala/master/wal/instance
echo 'trial: passed'
