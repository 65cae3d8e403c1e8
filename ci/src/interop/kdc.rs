//! A Kerberos realm of its own: MIT's KDC on loopback, its users, keytabs and tickets.
//!
//! The realm, its users and its rules are those of Kudu's own mini cluster, because upstream's tests know their names.

use std::fs;
use std::io::Write;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::CommandLine;

const REALM: &str = "KRBTEST.COM";
/// Users of the realm; each has its name for a password.
const USERS: [&str; 3] = ["test-admin", "test-user", "joe-interloper"];
/// User who administers the cluster.
pub(crate) const ADMIN: &str = USERS[0];
/// User who uses it.
pub(crate) const USER: &str = USERS[1];
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A realm. Dropping it ends the KDC.
pub(crate) struct Kdc {
    dir: PathBuf,
    process: Option<Child>,
}

/// Life of tickets, in the syntax of krb5.conf.
pub(crate) struct TicketLife {
    pub ticket: String,
    pub renew: String,
}

impl Default for TicketLife {
    fn default() -> TicketLife {
        TicketLife { ticket: "24h".to_owned(), renew: "7d".to_owned() }
    }
}

impl Kdc {
    /// Makes a realm with its users in `dir` and starts its KDC.
    pub(crate) fn start(dir: &Path, life: &TicketLife) -> Result<Kdc> {
        fs::create_dir_all(dir)?;
        let port = UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port();
        write_configuration(dir, port, life)?;
        let mut kdc = Kdc { dir: dir.to_path_buf(), process: None };
        kdc.command("kdb5_util")
            .args(["create", "-s", "-P", "masterpw", "-W"])
            .output()
            .and_then(succeeded)?;
        for user in USERS {
            kdc.kadmin(&format!("add_principal -pw {user} {user}"))?;
        }
        let mut command = Command::new("krb5kdc");
        command.arg("-n").envs(kdc.env()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        kdc.process = Some(command.spawn().context("starting krb5kdc; is it installed?")?);
        let start = Instant::now();
        while let Err(error) = kdc.kinit(ADMIN) {
            ensure!(start.elapsed() < START_TIMEOUT, "the KDC gives no ticket: {error:#}");
            thread::sleep(Duration::from_millis(100));
        }
        Ok(kdc)
    }

    /// Returns the variables with which programs find the realm and the cache of tickets.
    pub(crate) fn env(&self) -> [(&'static str, PathBuf); 3] {
        [
            ("KRB5_CONFIG", self.dir.join("krb5.conf")),
            ("KRB5_KDC_PROFILE", self.dir.join("kdc.conf")),
            ("KRB5CCNAME", self.dir.join("krb5cc")),
        ]
    }

    /// Returns the keytab of a server's principal, made once: each later one would spoil those before.
    pub(crate) fn keytab(&self, principal: &str) -> Result<PathBuf> {
        let path = self.dir.join(format!("{}.keytab", principal.replace('/', "_")));
        if !path.exists() {
            // Java names a host as its address is looked up; most machines know only this name of a loopback address.
            let named = principal.strip_suffix("/127.0.0.1").map(|service| format!("{service}/localhost"));
            for principal in [principal.to_owned()].into_iter().chain(named) {
                self.kadmin(&format!("add_principal -randkey {principal}"))?;
                self.kadmin(&format!("ktadd -k {} {principal}", path.display()))?;
            }
        }
        Ok(path)
    }

    /// Puts a ticket of `user` into the cache, instead of the one before.
    pub(crate) fn kinit(&self, user: &str) -> Result<()> {
        self.kinit_into(user, "krb5cc")
    }

    fn kinit_into(&self, user: &str, cache: &str) -> Result<()> {
        let fresh = self.dir.join(format!("{cache}.fresh"));
        let mut command = Command::new("kinit");
        command.envs(self.env()).arg("-c").arg(&fresh).arg(user);
        let mut kinit = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting kinit; is it installed?")?;
        writeln!(kinit.stdin.take().context("its input is a pipe")?, "{user}")?;
        let output = kinit.wait_with_output()?;
        ensure!(output.status.success(), "kinit {user}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(fs::rename(fresh, self.dir.join(cache))?)
    }

    /// Returns the variables of the environment with a fresh ticket of the administrator, in a cache of its own.
    pub(crate) fn admin_env(&self) -> Result<[(&'static str, PathBuf); 3]> {
        self.kinit_into(ADMIN, "krb5cc.admin")?;
        let [conf, profile, (name, _)] = self.env();
        Ok([conf, profile, (name, self.dir.join("krb5cc.admin"))])
    }

    pub(crate) fn kdestroy(&self) -> Result<()> {
        self.command("kdestroy").args(["-A"]).output().and_then(succeeded)
    }

    fn kadmin(&self, query: &str) -> Result<()> {
        self.command("kadmin.local").args(["-q", query]).output().and_then(succeeded)
    }

    fn command(&self, program: &str) -> CommandLine {
        self.env().iter().fold(CommandLine::new(program), |command, (name, value)| command.env(name, value))
    }
}

impl Drop for Kdc {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Both fail only for an ended process.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn succeeded(output: crate::command::Output) -> Result<()> {
    if !output.success {
        bail!("{}{}", output.stdout, output.stderr);
    }
    Ok(())
}

fn write_configuration(dir: &Path, port: u16, life: &TicketLife) -> Result<()> {
    let (path, TicketLife { ticket, renew }) = (dir.display(), life);
    let kdc_conf = format!(
        "[kdcdefaults]\nkdc_ports = {port}\nkdc_tcp_ports = \"\"\n[realms]\n{REALM} = {{\n\
         acl_file = {path}/acl\ndatabase_name = {path}/principal\nkey_stash_file = {path}/stash\n\
         max_renewable_life = 7d 0h 0m 0s\n}}\n[logging]\nkdc = FILE:{path}/kdc.log\n"
    );
    let krb5_conf = format!(
        "[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\ndns_lookup_realm = false\nrdns = false\n\
         forwardable = true\nticket_lifetime = {ticket}\nrenew_lifetime = {renew}\n\
         ignore_acceptor_hostname = true\nudp_preference_limit = 100000\n\
         [realms]\n{REALM} = {{\nkdc = 127.0.0.1:{port}\n\
         auth_to_local = RULE:[1:other-$1@$0](.*@OTHERREALM.COM$)s/@.*//\nauth_to_local = DEFAULT\n}}\n"
    );
    fs::write(dir.join("kdc.conf"), kdc_conf)?;
    Ok(fs::write(dir.join("krb5.conf"), krb5_conf)?)
}
