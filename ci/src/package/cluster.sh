# A secured cluster of three machines, by the blocks of node/OPERATIONS.md; run by `cargo ci package` as root in a fresh
# Debian, in namespaces of its own for mounts and the network. The only argument is the folder with the blocks, as
# 1-once, 2-machine, 3-once, 4-once, 5-machine.
#
# A machine is a namespace with a host name, an address, and its own /etc/nyala and /var/lib/nyala.

blocks=$1
export PATH="/root/stand-in:$PATH"
ip link set lo up
for number in 1 2 3; do
    ip address add "10.0.0.$number/32" dev lo
    grep -q "host$number" /etc/hosts || echo "10.0.0.$number host$number" >> /etc/hosts
    mkdir -p "/root/machines/host$number/etc" "/root/machines/host$number/lib"
    cp -a /etc/nyala/. "/root/machines/host$number/etc"
done

# Stand-in for systemd: runs a unit's command as its user, with its state directories.
mkdir -p /root/stand-in
cat > /root/stand-in/systemctl <<'END'
#!/bin/sh
set -eu
action=$1
shift
test "$1" = --now && shift
for unit; do
    run=/root/machines/$(hostname)/$unit
    case $action in
        enable)
            file=/usr/lib/systemd/system/$unit.service
            for dir in $(sed -n 's/^StateDirectory=//p' "$file"); do
                install -d -o nyala -g nyala -m 0750 "/var/lib/$dir"
            done
            # The three machines have one clock; nothing need keep it right.
            command="$(sed -n 's/^ExecStart=//p' "$file") --time_source=system_unsync"
            (
                code=0
                sh -c 'echo $$ > "$0.pid"
                    umask 0077
                    exec setpriv --reuid nyala --regid nyala --init-groups --no-new-privs $1' \
                    "$run" "$command" > "$run.log" 2>&1 < /dev/null || code=$?
                echo "$code" > "$run.code"
            ) &
            ;;
        disable)
            kill -TERM "$(cat "$run.pid")"
            for attempt in $(seq 600); do
                test -e "$run.code" && break
                sleep 0.1
            done
            test "$(cat "$run.code")" = 0
            ;;
        restart)
            install -d -o prometheus /root/prometheus
            chmod a+x /root
            setpriv --reuid prometheus --regid prometheus --init-groups prometheus \
                --config.file=/etc/prometheus/prometheus.yml --storage.tsdb.path=/root/prometheus \
                --web.listen-address=127.0.0.1:9090 > /root/prometheus.log 2>&1 < /dev/null &
            echo "$!" > /root/prometheus.pid
            ;;
    esac
done
END
chmod +x /root/stand-in/systemctl

show_logs() {
    tail -n 20 /root/machines/*/*.log /root/prometheus.log || true
}
trap 'test "$?" = 0 || show_logs' EXIT

# Runs a block on each machine.
on_machines() {
    for number in 1 2 3; do
        unshare --mount --propagation unchanged --uts sh -eu -c 'hostname "$0"
            mount --bind "/root/machines/$0/etc" /etc/nyala
            mkdir -p /var/lib/nyala
            mount --bind "/root/machines/$0/lib" /var/lib/nyala
            cd /root
            # The machines share the packages of one system: one that another machine removed is still there on this.
            dpkg --status nyala > /dev/null 2>&1 || dpkg --force-confold --install nyala.deb
            bash -eu "$1"' "host$number" "$1"
    done
}

cd /root
bash -eu "$blocks/1-once"
on_machines "$blocks/2-machine"

# The cluster is healthy, a row is written and read, and the page of the master says so.
timeout 180 bash -eu "$blocks/3-once" | tee /tmp/used
grep -w one /tmp/used
grep -i healthy /tmp/used
# Without a proof of identity there is no table, and without the password no page; probes need none.
! nyala table list --masters host1:7051 --ca-cert nyala-secrets/ca.pem
test "$(curl -s -o /dev/null -w '%{http_code}' --cacert nyala-secrets/ca.pem https://host2:8050/)" = 401
test "$(curl -s --cacert nyala-secrets/ca.pem https://host3:8050/livez)" = ok
! curl -s http://host1:8051/livez

# Prometheus finds and scrapes all six servers.
bash -eu "$blocks/4-once"
for attempt in $(seq 120); do
    curl -s -G --data-urlencode 'query=sum(up{job="nyala"})' http://127.0.0.1:9090/api/v1/query > /tmp/up || true
    grep '"6"\]' /tmp/up && break
    test "$attempt" != 120
    sleep 1
done
curl -s -G --data-urlencode 'query=count(nyala_build_info)' http://127.0.0.1:9090/api/v1/query | grep '"6"\]'
kill "$(cat /root/prometheus.pid)"

# It is removed: servers end in order, program, settings and data are gone.
on_machines "$blocks/5-machine"
test ! -e /usr/bin/nyala
! pgrep -u nyala
test -z "$(ls -A /root/machines/host1/etc /root/machines/host2/lib | grep -v :)"
echo 'trial: passed'
