# Trial of the image; run in a container of it, as its user, by `cargo ci package`.

test "$(id -u):$(id -g)" = 10001:10001
nyala --version
nyala-backup --version
touch /usr/bin/test-of-rights 2> /dev/null && exit 1

# A cluster as the chart starts it, but on one machine.
nyala master --fs-wal-dir=/var/lib/nyala/master/wal --fs-data-dirs=/var/lib/nyala/master/data \
    --rpc-bind-addresses=127.0.0.1:7961 --webserver-enabled=false &
master=$!
nyala tablet-server --fs-wal-dir=/var/lib/nyala/tserver/wal --fs-data-dirs=/var/lib/nyala/tserver/data \
    --rpc-bind-addresses=127.0.0.1:7960 --webserver-enabled=false --tserver-master-addrs=127.0.0.1:7961 &
server=$!
nyala cluster check --masters 127.0.0.1:7961 --wait 60
nyala table create t --masters 127.0.0.1:7961 --column 'k int64' --key k --hash k:2 --replicas 1
printf 'k\n1\n2\n' > /tmp/rows.csv
nyala table import t /tmp/rows.csv --masters 127.0.0.1:7961
nyala table scan t --masters 127.0.0.1:7961 --where 'k >= 2' | grep '^2$'

# STOPSIGNAL ends both in order.
kill -TERM "$server" "$master"
wait "$server"
wait "$master"
echo 'image: passed'
