//! The machines of the test: loopback addresses with a settings file, directories, and one service each.
//!
//! ```text
//!   ssh HOST COMMAND …        a program of the test: runs the command here, as if on HOST
//!   systemctl VERB UNIT       a program of the test: asks the control port, which starts or stops HOST's service
//! ```

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::CommandLine;
use crate::interop::daemon::Role;
use crate::interop::faketime;

const START_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Machine {
    pub role: Role,
    pub ip: Ipv4Addr,
    /// Folder of everything that the machine has.
    pub dir: PathBuf,
    program: PathBuf,
    child: Option<Child>,
    /// Seconds that its clock is ahead.
    pub clock_ahead: u64,
}

impl Machine {
    pub(super) fn new(program: &Path, role: Role, ip: Ipv4Addr, dir: &Path) -> Machine {
        let dir = dir.join(ip.to_string());
        Machine { role, ip, dir, program: program.to_path_buf(), child: None, clock_ahead: 0 }
    }

    pub(super) fn rpc(&self) -> String {
        format!("{}:{}", self.ip, if self.role == Role::Master { 7051 } else { 7050 })
    }

    pub(super) fn web(&self) -> String {
        format!("{}:{}", self.ip, if self.role == Role::Master { 8051 } else { 8050 })
    }

    pub(super) fn conf(&self) -> PathBuf {
        self.dir.join("settings.toml")
    }

    pub(super) fn wal(&self) -> PathBuf {
        self.dir.join("disk/wal")
    }

    /// Returns one of its two data directories.
    pub(super) fn data(&self, index: usize) -> PathBuf {
        self.dir.join(format!("disk/data-{index}"))
    }

    fn unit(&self) -> &'static str {
        if self.role == Role::Master { "nyala-master" } else { "nyala-tablet-server" }
    }

    /// Writes a settings file with the shortest patience, so that a runbook's waits end within seconds.
    pub(super) fn install(&self, masters: &[String]) -> Result<()> {
        fs::create_dir_all(self.dir.join("disk"))?;
        let (rpc, web) = (self.rpc(), self.web());
        let [first, second] = [self.data(1), self.data(2)].map(|dir| dir.display().to_string());
        let (interface, port) = web.split_once(':').context("an address has a port")?;
        let common = format!(
            "fs_wal_dir = {:?}\nfs_data_dirs = [{first:?}, {second:?}]\nrpc_bind_addresses = [{rpc:?}]\n\
             webserver_interface = {interface:?}\nwebserver_port = {port}\nraft_heartbeat_interval_ms = 200\n",
            self.wal(),
        );
        let own = match self.role {
            Role::Master => {
                format!("master_addresses = {masters:?}\ntserver_unresponsive_timeout_ms = 4000\n")
            }
            Role::TabletServer => format!(
                "tserver_master_addrs = {masters:?}\nheartbeat_interval_ms = 300\n\
                 follower_unavailable_considered_failed_sec = 3\n"
            ),
        };
        fs::write(self.conf(), common + &own)?;
        let places =
            format!("export WAL={} DATA={} CONF={}\n", self.wal().display(), first, self.conf().display());
        Ok(fs::write(self.dir.join("places"), places)?)
    }

    /// Adds a setting to the file; it has effect at the next start.
    pub(super) fn set(&self, name: &str, value: &str) -> Result<()> {
        let mut conf = OpenOptions::new().append(true).open(self.conf())?;
        Ok(writeln!(conf, "{name} = {value}")?)
    }

    fn command(&self) -> Result<Command> {
        let log = OpenOptions::new().create(true).append(true).open(self.dir.join("log"))?;
        let mut command = Command::new(&self.program);
        command.arg(if self.role == Role::Master { "master" } else { "tablet-server" });
        command.arg("--config").arg(self.conf());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        faketime::set_ahead(&mut command, self.clock_ahead);
        Ok(command)
    }

    /// Starts the service and waits until it is ready, or has ended: then its exit code is the error.
    pub(super) fn start(&mut self) -> Result<()> {
        if self.is_running() {
            return Ok(());
        }
        let mut child = self.command()?.spawn().context("starting nyala")?;
        let begun = Instant::now();
        let address: SocketAddr = self.rpc().parse()?;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = child.try_wait()? {
                bail!("{} of {} ended with {status}:\n{}", self.unit(), self.ip, self.log_tail());
            }
            ensure!(begun.elapsed() < START_TIMEOUT, "{} of {} does not start", self.unit(), self.ip);
            std::thread::sleep(Duration::from_millis(50));
        }
        self.child = Some(child);
        Ok(())
    }

    /// Stops the service with a signal, as a service manager does.
    fn stop(&mut self) -> Result<()> {
        let Some(child) = &mut self.child else { return Ok(()) };
        CommandLine::new("kill").args(["-TERM", &child.id().to_string()]).run()?;
        child.wait()?;
        self.child = None;
        Ok(())
    }

    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only for an ended process.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Kills the service and removes its disk.
    pub(super) fn lose(&mut self) -> Result<()> {
        self.kill();
        Ok(fs::remove_dir_all(self.dir.join("disk"))?)
    }

    pub(super) fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }

    /// Does what `systemctl VERB UNIT` does.
    fn systemctl(&mut self, verb: &str, unit: &str) -> Result<()> {
        match (verb, unit) {
            // The clock is set by a time service of the machine.
            ("restart", "chrony") => self.clock_ahead = 0,
            (_, unit) if unit != self.unit() => bail!("{} has no unit {unit}", self.ip),
            ("start", _) => self.start()?,
            ("stop", _) => self.stop()?,
            ("restart", _) => {
                self.stop()?;
                self.start()?;
            }
            _ => bail!("systemctl {verb} is not known here"),
        }
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Writes `ssh`, `systemctl`, `apt-get`, `runuser` and `nyala` into `bin`; `control` is the address of the control
/// port.
pub(super) fn write_programs(bin: &Path, program: &Path, control: SocketAddr) -> Result<()> {
    fs::create_dir_all(bin)?;
    std::os::unix::fs::symlink(program, bin.join("nyala"))?;
    let (ip, port) = (control.ip(), control.port());
    let ssh =
        "#!/bin/bash\n[ \"$1\" = -n ] && shift\nexport ON_HOST=$1\nshift\n. \"$SITE/$ON_HOST/places\"\n\
               exec bash -c \"$*\"\n"
            .to_owned();
    // The package of the test is this build: what counts is the order of the steps.
    let apt = "#!/bin/bash\necho \"$ON_HOST $*\" >> \"$SITE/installed\"\n".to_owned();
    // The test has one user, whose servers' directories they are.
    let runuser = "#!/bin/bash\nshift 3\nexec \"$@\"\n".to_owned();
    let systemctl = format!(
        "#!/bin/bash\nexec 3<>/dev/tcp/{ip}/{port}\necho \"$ON_HOST $1 $2\" >&3\nread -r answer <&3\n\
         [ \"$answer\" = done ] || {{ echo \"$answer\" >&2; exit 1; }}\n"
    );
    for (name, text) in [("ssh", ssh), ("apt-get", apt), ("runuser", runuser), ("systemctl", systemctl)] {
        let path = bin.join(name);
        fs::write(&path, text)?;
        CommandLine::new("chmod").args(["+x"]).args([&path]).run()?;
    }
    Ok(())
}

/// Serves one waiting `systemctl`, if there is one.
pub(super) fn serve(control: &TcpListener, machines: &mut BTreeMap<String, Machine>) -> Result<()> {
    let Ok((mut stream, _)) = control.accept() else { return Ok(()) };
    stream.set_nonblocking(false)?;
    let mut line = String::new();
    BufReader::new(stream.try_clone()?).read_line(&mut line)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let done = match words.as_slice() {
        [host, verb, unit] => match machines.get_mut(*host) {
            Some(machine) => machine.systemctl(verb, unit),
            None => Err(anyhow::anyhow!("there is no machine {host}")),
        },
        _ => Err(anyhow::anyhow!("not understood: {line}")),
    };
    let answer = done.map_or_else(|error| format!("{error:#}").replace('\n', " | "), |()| "done".to_owned());
    Ok(writeln!(stream, "{answer}")?)
}
