//! The stand-in for `kudu test mini_cluster`: upstream's Java harness starts its clusters through it.
//!
//! ```text
//!   harness ── u32 length + ControlShellRequestPB ──▶ stdin ─▶ [`Shell`] ─▶ nyala master, nyala tablet-server …
//!           ◀── u32 length + ControlShellResponsePB ── stdout
//! ```
//!
//! One reply per request, in order; nothing else may go to stdout. When stdin ends, so does the cluster and its data.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use prost::Message;

use super::cluster::{Cluster, ClusterPlan};
use super::daemon::{Daemon, Role, ServerKind};
use super::kdc::{Kdc, TicketLife};
use super::oidc::Oidc;
use super::packages::kudu_tool;
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::tools::control_shell_request_pb::Request;
use nyala_proto::kudu::tools::control_shell_response_pb::Response;
use nyala_proto::kudu::tools::{
    ControlShellRequestPb, ControlShellResponsePb, CreateClusterRequestPb, CreateJwtResponsePb,
    DaemonIdentifierPb, DaemonInfoPb, DaemonType, GetKdcEnvVarsResponsePb, GetMastersResponsePb,
    GetTServersResponsePb,
};
use nyala_proto::kudu::{AppStatusPb, HostPortPb};

/// Far above the size of the harness's requests.
const REQUEST_BYTES_MAX: usize = 1 << 20;

#[derive(Parser)]
pub(crate) struct MiniClusterOptions {
    /// The nyala program of the servers
    #[arg(long, value_name = "PROGRAM")]
    nyala: PathBuf,
    /// Start this many masters where the harness asks for more
    #[arg(long)]
    masters_max: usize,
    /// The folder of the real package, for every other command
    #[arg(long, value_name = "DIR")]
    kudu: PathBuf,
    /// The arguments of `kudu`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Writes an executable `kudu` into `dir`: this program as the stand-in, or the real one, whose `test mini_cluster`
/// then starts the servers. `kudu` is the folder of the real package.
pub(crate) fn install(dir: &Path, server: &ServerKind, kudu: &Path, masters_max: usize) -> Result<()> {
    fs::create_dir_all(dir)?;
    let stand_in = dir.join("stand-in");
    let script = match server {
        ServerKind::Nyala(program) => {
            // A copy: an earlier step may have built this program again with other features; the file that
            // runs then has no name any more.
            fs::copy("/proc/self/exe", &stand_in).context("copying this program")?;
            format!(
                "exec '{}' stand-in --nyala '{}' --masters-max {masters_max} --kudu '{}' --",
                stand_in.display(),
                program.display(),
                kudu.display()
            )
        }
        ServerKind::Kudu(program, env) => {
            let env = env.iter().map(|(name, value)| format!("{name}='{}' ", value.display()));
            let path = env_without_libraries(&dir.join("path"))?;
            format!(
                "PATH='{}':$PATH exec /usr/bin/env {}'{}'",
                path.display(),
                env.collect::<String>(),
                program.display()
            )
        }
    };
    let path = dir.join("kudu");
    fs::write(&path, format!("#!/bin/sh\n{script} \"$@\"\n"))?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

/// Writes an `env` by which the real mini cluster starts the system's Kerberos programs: they cannot run with the
/// libraries of the package. Returns its folder.
fn env_without_libraries(dir: &Path) -> Result<PathBuf> {
    fs::create_dir_all(dir)?;
    let path = dir.join("env");
    fs::write(&path, "#!/bin/sh\nunset LD_LIBRARY_PATH\nexec /usr/bin/env \"$@\"\n")?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(dir.to_path_buf())
}

/// Executes the `kudu` command line.
pub(crate) fn run(options: &MiniClusterOptions) -> Result<()> {
    let words: Vec<&str> = options.words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["test", "mini_cluster", rest @ ..] => {
            ensure!(rest == ["--serialization=pb"], "only --serialization=pb is spoken here, not {rest:?}");
            serve(options, &mut io::stdin().lock(), &mut io::stdout().lock())
        }
        ["--version"] => {
            println!("kudu 1.18.1\nrevision nyala {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        _ => kudu_tool(&options.kudu).args(&options.words).run(),
    }
}

/// Replies to requests until the input ends.
fn serve(options: &MiniClusterOptions, input: &mut impl Read, output: &mut impl Write) -> Result<()> {
    let server = ServerKind::Nyala(options.nyala.clone());
    let mut shell = Shell { server, masters_max: options.masters_max, created: None };
    while let Some(request) = read_request(input)? {
        let response = match request.request {
            None => Err(anyhow::anyhow!("an empty request")),
            Some(request) => shell.answer(request),
        };
        let response = match response {
            Ok(response) => ControlShellResponsePb { error: None, response },
            Err(error) => failed(&error),
        };
        output.write_all(&(response.encoded_len() as u32).to_be_bytes())?;
        output.write_all(&response.encode_to_vec())?;
        output.flush()?;
    }
    Ok(())
}

fn read_request(input: &mut impl Read) -> Result<Option<ControlShellRequestPb>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let length = u32::from_be_bytes(length) as usize;
    ensure!(length <= REQUEST_BYTES_MAX, "a request of {length} bytes");
    let mut bytes = vec![0; length];
    input.read_exact(&mut bytes)?;
    Ok(Some(ControlShellRequestPb::decode(bytes.as_slice())?))
}

fn failed(error: &anyhow::Error) -> ControlShellResponsePb {
    let not_found = error.downcast_ref::<NotFound>().is_some();
    let code = if not_found { ErrorCode::NotFound } else { ErrorCode::RuntimeError };
    eprintln!("mini_cluster: {error:#}");
    let status = AppStatusPb { code: code as i32, message: Some(format!("{error:#}")), posix_code: None };
    ControlShellResponsePb { error: Some(status), response: None }
}

/// The real tool's error for a feature that is not configured.
#[derive(Debug)]
struct NotFound(&'static str);

impl std::fmt::Display for NotFound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NotFound {}

struct Shell {
    server: ServerKind,
    masters_max: usize,
    created: Option<Created>,
}

/// A cluster and its data; dropping it ends the processes, then removes the data.
struct Created {
    cluster: Cluster,
    /// Realm of the tickets, if the harness asked for Kerberos.
    kdc: Option<Arc<Kdc>>,
    /// Issuer of JSON Web Tokens, if it asked for one.
    oidc: Option<Oidc>,
    _dir: tempfile::TempDir,
    /// Folder that the harness named, empty but for this cluster's data.
    root: Option<PathBuf>,
}

impl Drop for Created {
    fn drop(&mut self) {
        self.cluster.kill_all();
        if let Some(root) = &self.root {
            // The harness made it for this cluster; a remnant does no harm.
            let _ = fs::remove_dir_all(root);
        }
    }
}

impl Shell {
    fn answer(&mut self, request: Request) -> Result<Option<Response>> {
        match request {
            Request::CreateCluster(request) => self.create(&request)?,
            Request::DestroyCluster(_) => drop(self.created.take()),
            Request::StartCluster(_) => self.cluster()?.start()?,
            Request::StopCluster(_) => self.cluster()?.kill_all(),
            Request::StartDaemon(request) => {
                let (role, index) = identify(request.id)?;
                self.cluster()?.start_daemon(role, index)?;
            }
            Request::StopDaemon(request) => self.daemon(request.id)?.kill(),
            Request::PauseDaemon(request) => self.daemon(request.id)?.signal("STOP")?,
            Request::ResumeDaemon(request) => self.daemon(request.id)?.signal("CONT")?,
            Request::SetDaemonFlag(request) => {
                let (role, index) = identify(request.id)?;
                self.cluster()?.set_flag(role, index, request.flag(), request.value())?;
            }
            Request::GetMasters(_) => {
                let masters = infos(DaemonType::Master, &self.cluster()?.masters);
                return Ok(Some(Response::GetMasters(GetMastersResponsePb { masters })));
            }
            Request::GetTservers(_) => {
                let tservers = infos(DaemonType::Tserver, &self.cluster()?.tservers);
                return Ok(Some(Response::GetTservers(GetTServersResponsePb { tservers })));
            }
            Request::GetKdcEnvVars(_) => {
                let env = self.kdc()?.env();
                let text = |(name, path): (&str, PathBuf)| (name.to_string(), path.display().to_string());
                let env_vars = env.into_iter().map(text).collect();
                return Ok(Some(Response::GetKdcEnvVars(GetKdcEnvVarsResponsePb { env_vars })));
            }
            Request::Kdestroy(_) => self.kdc()?.kdestroy()?,
            Request::Kinit(request) => self.kdc()?.kinit(request.username())?,
            Request::CreateJwt(request) => {
                let oidc = self.created.as_ref().and_then(|created| created.oidc.as_ref());
                let oidc = oidc.ok_or(NotFound("no JWT signer"))?;
                let jwt = oidc.token(request.account_id(), request.subject(), request.is_valid_key())?;
                return Ok(Some(Response::CreateJwt(CreateJwtResponsePb { jwt: Some(jwt) })));
            }
        }
        Ok(None)
    }

    fn create(&mut self, request: &CreateClusterRequestPb) -> Result<()> {
        ensure!(self.created.is_none(), "cluster already created");
        let root = request.cluster_root.as_ref().map(PathBuf::from);
        let dir = match &root {
            Some(root) => {
                fs::create_dir_all(root)?;
                tempfile::tempdir_in(root)?
            }
            None => tempfile::tempdir()?,
        };
        let count = |asked: Option<i32>, default| {
            usize::try_from(asked.unwrap_or(default)).context("a count below 0")
        };
        let (kdc, oidc) = match request.enable_kerberos() {
            true => {
                let kdc = Kdc::start(&dir.path().join("krb5kdc"), &ticket_life(request))?;
                let oidc = request.mini_oidc_options.as_ref().map(|_| Oidc::start()).transpose()?;
                (Some(Arc::new(kdc)), oidc)
            }
            false => (None, None),
        };
        let mut master_gflags = oidc.as_ref().map(|oidc| oidc.flags().to_vec()).unwrap_or_default();
        master_gflags.extend(request.extra_master_flags.iter().cloned());
        let plan = ClusterPlan {
            masters: count(request.num_masters, 1)?.min(self.masters_max),
            tablet_servers: count(request.num_tservers, 3)?,
            master_gflags,
            tserver_gflags: request.extra_tserver_flags.clone(),
            // Tests look for log lines of servers: negotiations, deleted tablets.
            heard: true,
            doors: false,
            more_data_dirs: 0,
        };
        let mut cluster = Cluster::new(self.server.clone(), dir.path(), &plan)?;
        if let Some(kdc) = &kdc {
            cluster.use_kerberos(kdc, request.principal.as_deref().unwrap_or("kudu"))?;
        }
        self.created = Some(Created { cluster, kdc, oidc, _dir: dir, root });
        Ok(())
    }

    /// Returns the realm, if the harness asked for Kerberos.
    fn kdc(&self) -> Result<&Kdc> {
        let kdc = self.created.as_ref().and_then(|created| created.kdc.as_deref());
        Ok(kdc.ok_or(NotFound("kdc not found"))?)
    }

    fn cluster(&mut self) -> Result<&mut Cluster> {
        self.created
            .as_mut()
            .map(|created| &mut created.cluster)
            .ok_or_else(|| NotFound("cluster not found").into())
    }

    fn daemon(&mut self, id: Option<DaemonIdentifierPb>) -> Result<&mut Daemon> {
        let (role, index) = identify(id)?;
        self.cluster()?.daemon(role, index)
    }
}

fn identify(id: Option<DaemonIdentifierPb>) -> Result<(Role, usize)> {
    let id = id.context("request is missing daemon id")?;
    let role = match id.r#type() {
        DaemonType::Master => Role::Master,
        DaemonType::Tserver => Role::TabletServer,
        other => bail!("there is no daemon of type {other:?}"),
    };
    Ok((role, id.index() as usize))
}

fn infos(role: DaemonType, daemons: &[Daemon]) -> Vec<DaemonInfoPb> {
    let info = |(index, daemon): (usize, &Daemon)| DaemonInfoPb {
        id: Some(DaemonIdentifierPb { r#type: Some(role as i32), index: Some(index as u32) }),
        bound_rpc_address: Some(host_port(daemon.spec.rpc)),
        bound_http_address: Some(host_port(daemon.spec.web)),
    };
    daemons.iter().enumerate().map(info).collect()
}

fn host_port(addr: SocketAddr) -> HostPortPb {
    HostPortPb { host: addr.ip().to_string(), port: u32::from(addr.port()) }
}

/// Returns how long tickets last; a text that is missing or empty leaves it to the default.
fn ticket_life(request: &CreateClusterRequestPb) -> TicketLife {
    let asked = request.mini_kdc_options.clone().unwrap_or_default();
    let or = |asked: Option<String>, default| asked.filter(|text| !text.is_empty()).unwrap_or(default);
    let TicketLife { ticket, renew } = TicketLife::default();
    TicketLife { ticket: or(asked.ticket_lifetime, ticket), renew: or(asked.renew_lifetime, renew) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the replies to frames, as hex.
    fn replies(requests: &[Request]) -> Vec<ControlShellResponsePb> {
        let mut input = Vec::new();
        for request in requests {
            let request = ControlShellRequestPb { request: Some(request.clone()) };
            input.extend((request.encoded_len() as u32).to_be_bytes());
            input.extend(request.encode_to_vec());
        }
        let options = MiniClusterOptions {
            nyala: PathBuf::from("/no/such/nyala"),
            masters_max: 1,
            kudu: PathBuf::new(),
            words: Vec::new(),
        };
        let mut output = Vec::new();
        serve(&options, &mut input.as_slice(), &mut output).unwrap();
        let mut rest = output.as_slice();
        let mut replies = Vec::new();
        while let Some((length, tail)) = rest.split_first_chunk::<4>() {
            let (reply, tail) = tail.split_at(u32::from_be_bytes(*length) as usize);
            replies.push(ControlShellResponsePb::decode(reply).unwrap());
            rest = tail;
        }
        replies
    }

    fn create(masters: i32) -> Request {
        Request::CreateCluster(CreateClusterRequestPb {
            num_masters: Some(masters),
            num_tservers: Some(2),
            ..CreateClusterRequestPb::default()
        })
    }

    #[test]
    fn create_starts_nothing_and_names_every_daemon() {
        let replies = replies(&[
            create(3),
            create(3),
            Request::GetMasters(Default::default()),
            Request::GetTservers(Default::default()),
        ]);
        assert_eq!(replies[0], ControlShellResponsePb::default());
        assert_eq!(replies[1].error.as_ref().unwrap().message(), "cluster already created");
        let Some(Response::GetMasters(masters)) = &replies[2].response else { panic!("{:?}", replies[2]) };
        assert_eq!(masters.masters.len(), 1);
        let Some(Response::GetTservers(tservers)) = &replies[3].response else { panic!("{:?}", replies[3]) };
        let ids: Vec<_> = tservers.tservers.iter().map(|info| info.id.unwrap().index()).collect();
        assert_eq!(ids, [0, 1]);
        assert_ne!(tservers.tservers[0].bound_rpc_address, tservers.tservers[1].bound_rpc_address);
    }

    #[test]
    fn an_impossible_request_is_an_error_reply() {
        let replies = replies(&[
            Request::StartCluster(Default::default()),
            Request::GetKdcEnvVars(Default::default()),
            create(1),
            Request::StartCluster(Default::default()),
            Request::StopDaemon(Default::default()),
        ]);
        let errors: Vec<_> = replies.iter().map(|reply| reply.error.as_ref()).collect();
        assert_eq!(errors[0].unwrap().code(), ErrorCode::NotFound);
        assert_eq!(errors[1].unwrap().message(), "kdc not found");
        assert_eq!(errors[2], None);
        assert!(errors[3].unwrap().message().contains("/no/such/nyala"));
        assert_eq!(errors[4].unwrap().message(), "request is missing daemon id");
    }

    #[test]
    fn a_truncated_request_is_an_error() {
        assert!(read_request(&mut [0, 0, 0, 9, 1].as_slice()).is_err());
        assert!(read_request(&mut [0xff, 0, 0, 9, 1].as_slice()).is_err());
        assert!(read_request(&mut [].as_slice()).unwrap().is_none());
    }
}
