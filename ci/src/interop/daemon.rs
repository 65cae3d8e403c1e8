//! One master or tablet server as a process: of nyala, or of real Kudu as the reference.
//!
//! A daemon keeps its directory, its flags and its addresses across restarts. Its output goes to `log` in its
//! directory unless [`DaemonSpec::heard`] is set. Dropping it kills the process.

use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::faketime;
use crate::command::CommandLine;

/// Make of the servers to start.
#[derive(Clone)]
pub(crate) enum ServerKind {
    /// The `nyala` program.
    Nyala(PathBuf),
    /// The `kudu` program of the kudu-binary package, and its environment variables.
    Kudu(PathBuf, Vec<(&'static str, PathBuf)>),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Role {
    Master,
    TabletServer,
}

/// Configuration of a daemon, for every start.
#[derive(Clone)]
pub(crate) struct DaemonSpec {
    pub role: Role,
    /// Folder of the log.
    pub dir: PathBuf,
    /// Folder of the data.
    pub disk: PathBuf,
    /// Number of data directories; 1 or more.
    pub data_dirs: usize,
    /// Seconds that its clock is ahead.
    pub clock_ahead: u64,
    pub rpc: SocketAddr,
    /// Address that others connect to, if that is not `rpc`.
    pub advertised: Option<SocketAddr>,
    pub web: SocketAddr,
    /// Addresses of all masters of the cluster that others connect to, this one included.
    pub masters: Vec<SocketAddr>,
    /// gflags text, as Kudu's harness gives it: `--name=value` or `--name`.
    pub gflags: Vec<String>,
    /// Variables of its environment.
    pub env: Vec<(&'static str, PathBuf)>,
    /// True if the log goes to this program's standard error, as that of Kudu's own mini cluster does.
    pub heard: bool,
}

pub(crate) struct Daemon {
    pub spec: DaemonSpec,
    child: Option<Child>,
}

impl DaemonSpec {
    /// Returns the address that others connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.advertised.unwrap_or(self.rpc)
    }

    pub(crate) fn wal_dir(&self) -> PathBuf {
        self.disk.join("wal")
    }

    /// Returns the path of a data directory; 0 is the first.
    pub(crate) fn data_dir(&self, index: usize) -> PathBuf {
        self.disk.join(if index == 0 { "data".to_owned() } else { format!("data-{index}") })
    }

    /// Returns the directories as both servers' flags have them.
    fn dir_flags(&self) -> [String; 2] {
        let data: Vec<String> =
            (0..self.data_dirs).map(|index| self.data_dir(index).display().to_string()).collect();
        [format!("--fs_wal_dir={}", self.wal_dir().display()), format!("--fs_data_dirs={}", data.join(","))]
    }

    /// Removes all that the server has stored.
    pub(crate) fn wipe(&self) -> Result<()> {
        fs::remove_dir_all(self.wal_dir())?;
        (0..self.data_dirs).try_for_each(|index| Ok(fs::remove_dir_all(self.data_dir(index))?))
    }
}

impl ServerKind {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            ServerKind::Nyala(_) => "nyala",
            ServerKind::Kudu(..) => "kudu",
        }
    }

    fn command(&self, spec: &DaemonSpec) -> Command {
        match self {
            ServerKind::Nyala(program) => nyala_command(program, spec),
            ServerKind::Kudu(program, env) => kudu_command(program, env, spec),
        }
    }
}

fn addresses(addrs: &[SocketAddr]) -> String {
    addrs.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
}

/// Returns nyala's command line; its flags have Kudu's names and syntax.
fn nyala_command(program: &Path, spec: &DaemonSpec) -> Command {
    let mut command = Command::new(program);
    let masters = addresses(&spec.masters);
    match spec.role {
        Role::Master => command.arg("master"),
        Role::TabletServer => command.arg("tablet-server").arg(format!("--tserver-master-addrs={masters}")),
    };
    if spec.role == Role::Master && spec.masters.len() > 1 {
        command.arg(format!("--master-addresses={masters}"));
    }
    command.args(spec.dir_flags());
    command.arg(format!("--rpc-bind-addresses={}", spec.rpc));
    command.args(spec.advertised.map(|addr| format!("--rpc-advertised-addresses={addr}")));
    command.arg(format!("--webserver-interface={}", spec.web.ip()));
    command.arg(format!("--webserver-port={}", spec.web.port()));
    command.args(&spec.gflags);
    command
}

fn kudu_command(program: &Path, env: &[(&'static str, PathBuf)], spec: &DaemonSpec) -> Command {
    let mut command = Command::new(program);
    command.envs(env.iter().map(|(name, value)| (name, value)));
    match spec.role {
        Role::Master => {
            command.args(["master", "run"]);
            if spec.masters.len() > 1 {
                command.arg(format!("--master_addresses={}", addresses(&spec.masters)));
            }
        }
        Role::TabletServer => {
            command
                .args(["tserver", "run"])
                .arg(format!("--tserver_master_addrs={}", addresses(&spec.masters)));
        }
    }
    let dir = spec.dir.display();
    command.args(spec.dir_flags());
    command.args(spec.advertised.map(|addr| format!("--rpc_advertised_addresses={addr}")));
    command.arg(format!("--log_dir={dir}")).arg(format!("--rpc_bind_addresses={}", spec.rpc));
    command.arg(format!("--webserver_interface={}", spec.web.ip()));
    command.arg(format!("--webserver_port={}", spec.web.port()));
    // A CI machine has no synchronized clock, and the ports are above those that Kudu considers safe.
    command.args(["--unlock_unsafe_flags", "--unlock_experimental_flags", "--time_source=system_unsync"]);
    command.arg("--rpc_server_allow_ephemeral_ports").args(&spec.gflags);
    command
}

impl Daemon {
    pub(crate) fn new(spec: DaemonSpec) -> Daemon {
        Daemon { spec, child: None }
    }

    /// Starts the process; no-op while it runs. [`super::cluster::Cluster`] waits until it is ready.
    pub(crate) fn start(&mut self, server: &ServerKind) -> Result<()> {
        if self.child.is_some() {
            return Ok(());
        }
        fs::create_dir_all(&self.spec.dir)?;
        let log = OpenOptions::new().create(true).append(true).open(self.log_path())?;
        let mut command = server.command(&self.spec);
        command.envs(self.spec.env.iter().map(|(name, value)| (name, value)));
        faketime::set_ahead(&mut command, self.spec.clock_ahead);
        command.stdin(Stdio::null()).stdout(log.try_clone()?);
        command.stderr(if self.spec.heard { Stdio::inherit() } else { log.into() });
        self.child = Some(command.spawn().with_context(|| format!("starting {:?}", command.get_program()))?);
        Ok(())
    }

    /// Kills the process at once, as a power cut would; no-op when it is stopped.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only for an ended process.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends `STOP`, `CONT` or `TERM`.
    pub(crate) fn signal(&self, signal: &str) -> Result<()> {
        let Some(pid) = self.pid() else { return Ok(()) };
        CommandLine::new("kill").args([format!("-{signal}"), pid.to_string()]).run()
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Fails, with the end of its log, if the process has ended.
    pub(crate) fn check_runs(&mut self) -> Result<()> {
        let Some(child) = &mut self.child else { return Ok(()) };
        let Some(status) = child.try_wait()? else { return Ok(()) };
        bail!("{:?} ended with {status}:\n{}", self.spec.role, self.log_tail());
    }

    /// Waits until the process ends by itself; returns its exit code. `None` if it still runs after `timeout`.
    pub(crate) fn exit_code_within(&mut self, timeout: Duration) -> Result<Option<i32>> {
        let begun = Instant::now();
        let Some(child) = &mut self.child else { bail!("the process was not started") };
        while begun.elapsed() < timeout {
            if let Some(status) = child.try_wait()? {
                self.child = None;
                return Ok(Some(status.code().unwrap_or(-1)));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(None)
    }

    fn log_path(&self) -> PathBuf {
        self.spec.dir.join("log")
    }

    /// Returns the last lines of the log.
    pub(crate) fn log_tail(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns free addresses, all different, on a loopback address that no other process of this kind uses.
///
/// Connections leave from 127.0.0.1, so that none takes the port of a server that is down for a while.
pub(crate) fn free_addresses(count: usize) -> Result<Vec<SocketAddr>> {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let own = Ipv4Addr::new(127, 64 | (high & 0x3f), middle, low);
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind((own, 0))).collect::<std::io::Result<_>>()?;
    Ok(listeners.iter().map(TcpListener::local_addr).collect::<std::io::Result<_>>()?)
}
