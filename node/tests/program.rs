//! Output and exit codes of the program.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{begin_up_command, nyala, stop, until_up, up};
use engine::codec;
use node::server::flags::{FlagSpec, TABLE};

mod common;

/// Runs the program to its end. Returns the exit code and standard error.
fn fails(args: &[&str]) -> (i32, String) {
    let Output { status, stderr, .. } = nyala(args).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn a_cluster_starts_stops_and_restarts() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let (child, printed) = up(&dir.path().join("data"), &["--tablet-servers=2"]);
        let servers = printed.lines().filter(|line| line.contains("/metrics")).count();
        assert_eq!(servers, 3, "{printed}");
        stop(child);
    }
}

/// Returns the permissions that others than the owner have on anything below `path`, and on it.
fn permissions_of_others(path: &Path) -> u32 {
    let metadata = std::fs::symlink_metadata(path).unwrap();
    let own = metadata.permissions().mode() & 0o077;
    if !metadata.is_dir() {
        return own;
    }
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.fold(own, |all, entry| all | permissions_of_others(&entry))
}

/// Servers hold the keys of the cluster's CA: other users of the machine must not read their files, whatever the umask
/// of the shell that starts them.
#[test]
fn files_of_servers_are_the_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    for (settings, others) in
        [(&["--tablet-servers=1"][..], 0), (&["--tablet-servers=1", "--umask=027"], 0o050)]
    {
        let data = dir.path().join(format!("{others}"));
        let begun = begin_up_command(&data, settings);
        let mut command = Command::new("sh");
        command.args(["-c", "umask 022; exec \"$0\" \"$@\""]).arg(begun.get_program()).args(begun.get_args());
        let (child, _) = until_up(command.stdout(Stdio::piped()).spawn().unwrap());
        stop(child);
        assert_eq!(permissions_of_others(&data), others, "{settings:?}");
    }
}

/// Also a command that has done its work fails if its output is lost.
#[test]
fn output_that_cannot_be_written_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for out in [Stdio::from(full), Stdio::from(closed)] {
        let Output { status, stderr, .. } = nyala(&["completions", "bash"]).stdout(out).output().unwrap();
        let stderr = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(1), "{stderr}");
        assert!(stderr.starts_with("nyala: write standard output: "), "{stderr}");
    }
}

#[test]
fn a_directory_of_another_server_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    stop(up(&dir.path().join("data"), &["--tablet-servers=2"]).0);
    let wal = dir.path().join("data/tserver-1/wal");
    let wal = wal.to_str().unwrap();
    let data = dir.path().join("data/tserver-2/data");
    let data = data.to_str().unwrap();
    let bind = "--rpc_bind_addresses=127.0.0.1:0";

    let (code, stderr) = fails(&["master", bind, "--fs_wal_dir", wal]);
    assert_eq!(code, 4);
    assert!(stderr.contains("belongs to a tablet server, not to a master"), "{stderr}");

    let (code, stderr) = fails(&["tablet-server", bind, "--fs_wal_dir", wal, "--fs_data_dirs", data]);
    assert_eq!(code, 4);
    assert!(stderr.contains("give each server its own directories"), "{stderr}");

    let instance = format!("{wal}/instance");
    let bytes = std::fs::read(&instance).unwrap();
    let magic = bytes[..4].try_into().unwrap();
    let (version, payload) = codec::unseal(magic, u16::MAX, &bytes).unwrap();
    std::fs::write(&instance, codec::seal(magic, version + 1, payload)).unwrap();
    let (code, stderr) = fails(&["tablet-server", bind, "--fs_wal_dir", wal]);
    assert_eq!(code, 4);
    assert!(stderr.contains("newer than the newest this build reads"), "{stderr}");
}

#[test]
fn an_address_in_use_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let bind = format!("--rpc_bind_addresses={taken}");
    let listening = TcpListener::bind(taken).unwrap();
    let (code, stderr) = fails(&["master", &bind, "--fs_wal_dir", dir.path().join("m").to_str().unwrap()]);
    drop(listening);
    assert_eq!(code, 3);
    assert!(stderr.contains("another program has it"), "{stderr}");
}

#[test]
fn invalid_flags_are_reported_before_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nyala.toml");
    std::fs::write(&file, "fs_wal_dir = \"/x\"\nlog_sink = true\n").unwrap();
    let (code, stderr) = fails(&["master", "--config", file.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(
        stderr.contains("line 2: there is no setting \"log_sink\"; did you mean \"log_sync\"?"),
        "{stderr}"
    );

    std::fs::write(&file, "fs_wal_dir = \"/x\"\ntserver_enforce_access_control = true\n").unwrap();
    let (code, stderr) = fails(&["master", "--config", file.to_str().unwrap()]);
    assert_eq!(code, 2);
    let other_kind = "line 2: tserver_enforce_access_control: not a flag of this kind of server";
    assert!(stderr.contains(other_kind), "{stderr}");

    let policy = dir.path().join("policy.toml");
    std::fs::write(&policy, "no policy").unwrap();
    let policy = format!("--authz-policy-file={}", policy.display());
    let data = dir.path().join("data");
    let up = ["up", "--free-ports", "--dir", data.to_str().unwrap()];
    let cases: [(&[&str], &str); 12] = [
        (&[&up[..], &[&policy]].concat(), "policy.toml"),
        (
            &[&up[..], &["--umask=0777"]].concat(),
            "umask: not an octal number from 000 to 077 (given \"0777\")",
        ),
        (&[&up[..], &["--authz-policy-file=/nonexistent"]].concat(), "authz_policy_file: read /nonexistent"),
        (&[&up[..], &["--fs-wal-dir-reserved-bytes=lots"]].concat(), "fs_wal_dir_reserved_bytes"),
        (&["master"], "name one with --fs-wal-dir"),
        (&["master", "--fs_wall_dir=/x"], "a similar argument exists: '--fs-wal-dir'"),
        (&["tserver", "--fs_wal_dir=/x", "--scanner_ttl_ms=soon"], "is not a whole number"),
        (&["master", "--fs_wal_dir=/x", "--log_level=a=b=c"], "log_level"),
        (&["master", "--config=/nonexistent"], "read the settings in /nonexistent"),
        (&["up", "--masters=2", "--free-ports"], "an odd number of masters"),
        (&["master", "--fs_wal_dir=/x", "--default_num_replicas=2"], "default_num_replicas: 2 is even"),
        (
            &["master", "--fs_wal_dir=/x", "--min_num_replicas=5", "--max_num_replicas=3"],
            "min_num_replicas: 5 is above max_num_replicas (3)",
        ),
    ];
    for (args, wanted) in cases {
        let (code, stderr) = fails(args);
        assert_eq!(code, 2, "{args:?}: {stderr}");
        assert!(stderr.contains(wanted), "{args:?}: {stderr}");
    }
    assert!(!data.exists(), "nothing was started");
}

/// Scripts tell a wrong command line from a cluster that does not reply, which is worth another attempt.
#[test]
fn a_wrong_command_line_has_its_own_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (csv, packed, backups) = (file("t.csv"), file("t.parquet.gz"), file("backups"));
    let export = ["table", "export", "t"];
    let cases: [(&[&str], &str); 8] = [
        (
            &["table", "list", "--ca-cert", "/nonexistent.pem"],
            "--ca-cert: read /nonexistent.pem: No such file",
        ),
        (
            &["table", "import", "t", "-", "--format=csv", "--jwt-file=/nonexistent"],
            "--jwt-file: read /nonexistent",
        ),
        (&[&export[..], &["t.foo"]].concat(), "t.foo: unknown format"),
        (&[&export[..], &[&packed]].concat(), "Parquet files are compressed inside"),
        (&[&export[..], &["--null", ",", &csv]].concat(), "--null: \",\" would need quotes"),
        (&[&export[..], &["--at", "soon", &csv]].concat(), "--at: "),
        (&["backup", "create", &backups], "no table given; name tables, or give --all"),
        (&["table", "alter", "t"], "no change is given; see nyala table alter --help"),
    ];
    for (args, wanted) in cases {
        let (code, stderr) = fails(args);
        assert_eq!(code, 2, "{args:?}: {stderr}");
        assert!(stderr.contains(wanted), "{args:?}: {stderr}");
    }
}

/// Two time servers, an hour apart: neither is believed.
#[test]
fn a_server_does_not_serve_while_its_time_servers_disagree() {
    let dir = tempfile::tempdir().unwrap();
    let servers = [0, 3_600].map(time_server);
    let wal = format!("--fs_wal_dir={}", dir.path().join("wal").display());
    let named = format!("--builtin_ntp_servers=127.0.0.1:{},127.0.0.1:{}", servers[0], servers[1]);
    let (code, stderr) = fails(&[
        "master",
        "--rpc_bind_addresses=127.0.0.1:0",
        "--webserver_enabled=false",
        "--time_source=builtin",
        "--ntp_initial_sync_wait_secs=1",
        &wal,
        &named,
    ]);
    assert_eq!(code, 6, "{stderr}");
    assert!(stderr.contains("no majority of builtin_ntp_servers agrees"), "{stderr}");
}

/// Starts an NTP server whose clock is `ahead` seconds ahead. Returns its port.
fn time_server(ahead: u64) -> u16 {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut request = [0; 48];
        while let Ok((_, client)) = socket.recv_from(&mut request) {
            let since_1970 = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
            let time = ((since_1970 + 2_208_988_800 + ahead) << 32).to_be_bytes();
            let mut reply = [0; 48];
            reply[..4].copy_from_slice(&[4 << 3 | 4, 1, 6, 0]);
            reply[24..32].copy_from_slice(&request[40..]);
            reply[32..40].copy_from_slice(&time);
            reply[40..].copy_from_slice(&time);
            socket.send_to(&reply, client).unwrap();
        }
    });
    port
}

/// A flag for protection, a clock or a log file must not be accepted and ignored.
#[test]
fn flags_of_missing_features_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let wal = format!("--fs_wal_dir={}", dir.path().join("wal").display());
    let file = dir.path().join("nyala.toml");
    std::fs::write(&file, "log_sync = true\nranger_kms_url = \"kms.example.com:9292\"\n").unwrap();
    let config = format!("--config={}", file.display());
    let keytab = match cfg!(feature = "kerberos") {
        true => "keytab_file: read /nonexistent.keytab: No such file or directory",
        false => {
            "keytab_file: this program was built without Kerberos (given /nonexistent.keytab); leave it out, or build \
             with the cargo feature kerberos"
        }
    };
    let cases: [(&[&str], &str); 7] = [
        (&["master", &wal, "--keytab-file=/nonexistent.keytab"], keytab),
        (
            &["master", &wal, "--rpc_authentication=required"],
            "rpc_authentication: servers cannot prove who they are (required, without keytab_file and \
             rpc_certificate_file);",
        ),
        (
            &["tablet-server", &wal, &config],
            "line 2: ranger_kms_url: files are not encrypted (given kms.example.com:9292, accepted nothing); leave it \
             out,",
        ),
        (&["master", &wal, "--rpc-certificate-file=/etc/cert.pem"], "rpc_private_key_file: not given; give"),
        (&["master", &wal, "--ranger_config_path=/etc/ranger"], "(given /etc/ranger, accepted nothing)"),
        (
            &["master", &wal, "--time_source=mock"],
            "(given mock, accepted auto, builtin, system or system_unsync); keep",
        ),
        (
            &["master", &wal, "--log_dir=/var/log/kudu"],
            "(given /var/log/kudu, accepted nothing); leave it out",
        ),
    ];
    for (args, wanted) in cases {
        let (code, stderr) = fails(args);
        assert_eq!(code, 2, "{args:?}: {stderr}");
        assert!(stderr.contains(wanted), "{args:?}: {stderr}");
    }
    assert!(!dir.path().join("wal").exists(), "nothing was started");
}

/// Code must read each flag that the table declares as effective.
#[test]
fn flags_with_an_effect_are_read() {
    let mut sources = String::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            match path.is_dir() {
                true => folders.push(path),
                false if name.starts_with("flag") => {}
                false => sources.push_str(&std::fs::read_to_string(path).unwrap()),
            }
        }
    }
    let unread = |spec: &&FlagSpec| spec.has_effect() && !sources.contains(&format!("{:?}", spec.name));
    let unread: Vec<_> = TABLE.iter().filter(unread).map(|spec| spec.name).collect();
    assert!(unread.is_empty(), "declare them inert or reject them: {unread:?}");
}

#[test]
fn a_service_manager_is_told_the_state() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    let mut command = begin_up_command(&dir.path().join("data"), &["--tablet-servers=1"]);
    let child = command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "60000").spawn().unwrap();
    let mut heard = Vec::new();
    let mut until = |wanted: &str| {
        let mut message = [0; 256];
        while heard.last().is_none_or(|last| last != wanted) {
            let length = manager.recv(&mut message).unwrap();
            heard.push(String::from_utf8_lossy(&message[..length]).trim_end().to_string());
        }
        heard.clone()
    };
    assert!(!until("READY=1").contains(&"STOPPING=1".to_string()));
    until("WATCHDOG=1");
    stop(until_up(child).0);
    until("STOPPING=1");
}

#[test]
fn completions_and_manual_pages_are_made_of_the_commands() {
    let dir = tempfile::tempdir().unwrap();
    let man = dir.path().join("man");
    assert!(nyala(&["man", man.to_str().unwrap()]).status().unwrap().success());
    let page = std::fs::read_to_string(man.join("nyala-table-import.1")).unwrap();
    assert!(page.contains("nyala\\-table\\-import") && page.contains("\\-\\-rejects"), "{page}");
    let Output { stdout, .. } = nyala(&["completions", "bash"]).output().unwrap();
    let script = dir.path().join("nyala.bash");
    std::fs::write(&script, stdout).unwrap();
    let words = "COMP_WORDS=(nyala table imp); COMP_CWORD=2; _nyala nyala imp table; echo ${COMPREPLY[@]}";
    let script = format!("source {}; {words}", script.display());
    let Output { stdout, .. } = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8(stdout).unwrap().trim(), "import");
    let (code, stderr) = fails(&["completions", "ksh"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("[possible values: bash, zsh, fish"), "{stderr}");
}

#[test]
fn flags_without_effect_are_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut command =
        nyala(&["up", "--free-ports", "--tablet-servers=2", "--log-level=warn", "--never_fsync"]);
    command.arg("--dir").arg(dir.path().join("data")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut child, _) = until_up(command.spawn().unwrap());
    let mut stderr = child.stderr.take().unwrap();
    stop(child);
    let mut log = String::new();
    stderr.read_to_string(&mut log).unwrap();
    let warning = "never_fsync: has no effect here, use log_sync (given true); leave it out";
    assert_eq!(log.matches(warning).count(), 1, "{log}");
}
