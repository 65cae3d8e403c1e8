//! Kerberos with a real KDC: `krb5kdc` and `kinit` of Debian, a cluster that requires tickets and encryption, and the
//! program `nyala` as its client. Built with the cargo feature `kerberos` only; without the packages it says so.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

use std::io::Write;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use common::{begin_up_command, nyala, stop, until_up};

#[allow(dead_code, reason = "this test needs a part of it")]
mod common;

const REALM: &str = "NYALA.TEST";
const OTHER_REALM: &str = "OTHER.TEST";
/// Folders of system programs, which the path of a user may lack.
const SYSTEM: [&str; 2] = ["/usr/sbin", "/usr/bin"];

/// Returns the path of a program of the packages, if they are installed.
fn program(name: &str) -> Option<PathBuf> {
    SYSTEM.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}

/// A realm with its own KDC on loopback. Programs find it by `krb5.conf` in its folder.
struct Realm {
    name: &'static str,
    dir: PathBuf,
    port: u16,
    kdc: Option<Child>,
}

impl Realm {
    fn new(dir: &Path, name: &'static str) -> Realm {
        let dir = dir.join(name);
        std::fs::create_dir(&dir).unwrap();
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let kdc_conf = format!(
            "[kdcdefaults]\nkdc_ports = {port}\nkdc_tcp_ports = \"\"\n[realms]\n{name} = {{\n\
             database_name = {path}/principal\nkey_stash_file = {path}/stash\nacl_file = {path}/acl\n\
             max_renewable_life = 7d\n}}\n[logging]\nkdc = FILE:{path}/kdc.log\n",
            path = dir.display(),
        );
        std::fs::write(dir.join("kdc.conf"), kdc_conf).unwrap();
        Realm { name, dir, port, kdc: None }
    }

    /// Writes the configuration of clients, which know the KDCs of all `realms`.
    fn write_conf(&self, realms: &[&Realm]) {
        let kdcs: String = realms
            .iter()
            .map(|realm| format!("{} = {{\nkdc = 127.0.0.1:{}\n}}\n", realm.name, realm.port))
            .collect();
        let conf = format!(
            "[libdefaults]\ndefault_realm = {}\ndns_lookup_kdc = false\ndns_lookup_realm = false\nrdns = false\n\
             ignore_acceptor_hostname = true\nudp_preference_limit = 100000\n[realms]\n{kdcs}",
            self.name
        );
        std::fs::write(self.dir.join("krb5.conf"), conf).unwrap();
    }

    /// Returns a command in this realm, with a cache of tickets of its own.
    fn with_realm<'a>(&self, command: &'a mut Command, cache: &str) -> &'a mut Command {
        command
            .env("KRB5_CONFIG", self.dir.join("krb5.conf"))
            .env("KRB5_KDC_PROFILE", self.dir.join("kdc.conf"))
            .env("KRB5CCNAME", self.dir.join(cache))
    }

    fn run(&self, name: &str, args: &[&str]) {
        let mut command = Command::new(program(name).unwrap());
        let output = self.with_realm(command.args(args), "none").output().unwrap();
        assert!(output.status.success(), "{name} {args:?}: {output:?}");
    }

    fn start(&mut self) {
        self.run("kdb5_util", &["create", "-s", "-r", self.name, "-P", "master"]);
        let mut command = Command::new(program("krb5kdc").unwrap());
        self.with_realm(command.args(["-n", "-r", self.name]), "none");
        self.kdc = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut kdc) = self.kdc.take() {
            kdc.kill().unwrap();
            kdc.wait().unwrap();
        }
    }

    fn kadmin(&self, query: &str) {
        self.run("kadmin.local", &["-r", self.name, "-q", query]);
    }

    /// Gets a ticket for `user`, whose password is its name, into the cache `cache`. The KDC may still be starting.
    fn kinit(&self, user: &str, cache: &str) {
        let attempt = || {
            let mut command = Command::new(program("kinit").unwrap());
            self.with_realm(command.arg(user), cache);
            let mut kinit =
                command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            writeln!(kinit.stdin.take().unwrap(), "{user}").unwrap();
            kinit.wait_with_output().unwrap()
        };
        let mut last = attempt();
        for _ in 0..10 {
            if last.status.success() {
                return;
            }
            last = attempt();
        }
        panic!("kinit {user}: {last:?}");
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        self.kill();
    }
}

struct World {
    realm: Realm,
    masters: String,
}

impl World {
    fn nyala(&self, cache: &str, args: &[&str]) -> Output {
        let mut command = nyala(args);
        self.realm.with_realm(command.args(["--masters", &self.masters]), cache).output().unwrap()
    }

    fn succeeds(&self, cache: &str, args: &[&str]) -> String {
        let output = self.nyala(cache, args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, cache: &str, args: &[&str]) -> String {
        let output = self.nyala(cache, args);
        assert!(!output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// Returns the addresses of the masters that `nyala up` prints.
fn masters(printed: &str) -> String {
    let line = printed.lines().find(|line| line.contains("--masters")).unwrap_or_else(|| panic!("{printed}"));
    let rest = line.split("--masters").nth(1).unwrap().trim_start_matches(['=', ' ']);
    rest.split_whitespace().next().unwrap().to_string()
}

/// Makes the two realms, the users of the first, and the keytab of its servers.
fn realms(dir: &Path) -> (Realm, Realm, String) {
    let (mut realm, mut other) = (Realm::new(dir, REALM), Realm::new(dir, OTHER_REALM));
    realm.write_conf(&[&realm, &other]);
    other.write_conf(&[&realm, &other]);
    realm.start();
    other.start();
    let keytab = realm.dir.join("server.keytab").display().to_string();
    realm.kadmin("addprinc -randkey kudu/127.0.0.1");
    realm.kadmin(&format!("ktadd -k {keytab} kudu/127.0.0.1"));
    for user in ["ann", "bob", "kudu"] {
        realm.kadmin(&format!("addprinc -pw {user} {user}"));
    }
    other.kadmin("addprinc -pw ann ann");
    (realm, other, keytab)
}

fn start_cluster(dir: &Path, realm: &Realm, keytab: &str) -> (Child, String) {
    let (keytab, log) = (format!("--keytab-file={keytab}"), std::fs::File::create(dir.join("log")).unwrap());
    let settings = [
        "--masters=3",
        "--tablet-servers=3",
        "--log-level=info",
        "--rpc-authentication=required",
        "--rpc-encryption=required",
        "--rpc-encrypt-loopback-connections=true",
        "--rpc-trace-negotiation=true",
        "--principal=kudu/127.0.0.1",
        "--user-acl=ann",
        &keytab,
    ];
    let mut command = begin_up_command(&dir.join("data"), &settings);
    let (child, printed) = until_up(realm.with_realm(&mut command, "servers").stderr(log).spawn().unwrap());
    (child, masters(&printed))
}

#[test]
fn a_cluster_that_requires_tickets_serves_those_who_have_one() {
    if program("krb5kdc").is_none() || program("kinit").is_none() {
        println!("skipped: there is no KDC; apt-get install krb5-kdc krb5-admin-server krb5-user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (realm, other, keytab) = realms(dir.path());
    let (cluster, masters) = start_cluster(dir.path(), &realm, &keytab);
    let mut world = World { realm, masters };

    // A ticket opens the cluster, and the users' names are those of the access lists.
    world.realm.kinit("ann", "ann");
    let create = ["table", "create", "t", "--column", "id int64", "--hash", "id:2", "--replicas", "3"];
    world.succeeds("ann", &create);
    assert!(world.succeeds("ann", &["table", "list"]).contains('t'));
    world.realm.kinit("bob", "bob");
    let bob = world.refused("bob", &["table", "list"]);
    assert!(bob.contains("unauthorized access to method: ConnectToMaster"), "{bob}");
    world.realm.kinit("kudu", "kudu");
    assert!(world.succeeds("kudu", &["cluster", "check"]).contains('t'), "the servers' user is a superuser");

    // Without a ticket, with one of another realm, and with the name of another service.
    let none = world.refused("no-cache", &["table", "list"]);
    let text = "server requires authentication, but client does not have Kerberos credentials available";
    assert!(none.contains(text) && none.contains("No Kerberos credentials available"), "{none}");
    other.kinit("ann", "ann");
    let stranger = other.dir.join("ann").display().to_string();
    let stranger = world.refused(&stranger, &["table", "list"]);
    assert!(stranger.contains("GSSAPI with kudu/127.0.0.1: "), "{stranger}");
    let service = world.refused("ann", &["table", "list", "--sasl-protocol-name", "oryx"]);
    assert!(service.contains("GSSAPI with oryx/127.0.0.1: "), "{service}");

    // Servers use certificates among themselves, so without a KDC the cluster and a client with tickets continue.
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    for authn in ["SASL", "CERTIFICATE", "TOKEN"] {
        assert!(log.contains(&format!("Negotiated authn={authn}")), "{authn}: {log}");
    }
    assert!(log.contains("Client requested to use mechanism: GSSAPI") && !log.contains("mechanism: PLAIN"));
    world.realm.kill();
    world.succeeds("ann", &["table", "scan", "t"]);
    stop(cluster);
}

#[test]
fn a_keytab_that_does_not_fit_is_refused_at_start() {
    if program("krb5kdc").is_none() {
        println!("skipped: there is no KDC; apt-get install krb5-kdc krb5-admin-server krb5-user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (realm, _other, keytab) = realms(dir.path());
    let wal = dir.path().join("wal").display().to_string();
    let start = |flags: &[&str]| {
        let fixed = ["master", "--rpc_bind_addresses=127.0.0.1:0", "--fs_wal_dir", &wal];
        let mut command = nyala(&[&fixed, flags].concat());
        let output = realm.with_realm(&mut command, "servers").output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let file = format!("--keytab_file={keytab}");
    let (code, stderr) = start(&[&file, "--principal=kudu/another.host"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains(&format!("keytab_file: {keytab} has no key of kudu/another.host")), "{stderr}");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&keytab, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, stderr) = start(&[&file, "--principal=kudu/127.0.0.1"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("can be read by every user (mode 644)"), "{stderr}");
    assert!(!dir.path().join("wal").exists(), "nothing was started");
}
