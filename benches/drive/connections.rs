//! New connections, one after another in each client: TLS 1.3 and an authentication token, no call.
//!
//! The token and the CA come from the leading master, to which the ticket of the user's cache is shown once. A
//! connection after that has nothing but the token, so a server that does not accept it ends the run.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use nyala_common::env::Env;
use nyala_common::env::kerberos::{ClientKerberos, KerberosCredentials};
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_common::rpc::client::{CallOptions, ClientConnection};
use nyala_common::security::{
    ClientSecurity, ClientSecurityOptions, EncryptionPolicy, RpcCaller, TlsCredentials, TlsSettings,
};
use nyala_proto::kudu::master::{ConnectToMasterRequestPb, ConnectToMasterResponsePb};

use crate::Target;
use crate::report::Report;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Target,
    /// The tablet server to connect to
    #[arg(long)]
    address: SocketAddr,
    /// Duration in seconds
    #[arg(long)]
    seconds: f64,
}

const ATTEMPT: Duration = Duration::from_secs(10);
/// Time within which a fresh tablet server knows the key of the token.
const KEYS_KNOWN_WITHIN: Duration = Duration::from_secs(20);
/// Application feature of `ConnectToMaster`.
const CONNECT_TO_MASTER: u32 = 3;

pub(crate) async fn run(options: &Options) -> Result<Report, Box<dyn Error>> {
    let env = OsEnv::new(&OsOptions::default())?;
    let caller = token_bearer(&env, &options.target.masters).await?;
    until_accepted(&env, &caller, options.address).await?;
    let (begun, length) = (Instant::now(), Duration::from_secs_f64(options.seconds));
    let client = || connect_repeatedly(env.clone(), caller.clone(), options.address, begun + length);
    let clients: Vec<_> = (0..options.target.clients).map(|_| tokio::spawn(client())).collect();
    let (mut latencies, mut failed) = (Vec::new(), 0);
    for client in clients {
        let (of_client, failed_of_client) = client.await?;
        latencies.extend(of_client);
        failed += failed_of_client;
    }
    let seconds = begun.elapsed().as_secs_f64();
    latencies.sort_by(f64::total_cmp);
    let at = |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied().unwrap_or(0.0);
    let operations = latencies.len() as u64 + failed;
    let (p50_ms, p99_ms, p999_ms) = (at(0.5), at(0.99), at(0.999));
    Ok(Report { operations, failed, seconds, p50_ms, p99_ms, p999_ms, samples: Vec::new() })
}

/// Returns a caller that presents a token and nothing else, on TLS 1.3 with the cluster's CA verified.
async fn token_bearer(env: &Env, masters: &str) -> Result<RpcCaller, Box<dyn Error>> {
    let library = env.net.kerberos().ok_or("built without Kerberos; build with --features kerberos")?;
    let credentials = KerberosCredentials::Cache;
    let kerberos = Some(ClientKerberos { library, credentials, service: "kudu".to_string() });
    let encryption = EncryptionPolicy::Required;
    let options = ClientSecurityOptions { encryption, kerberos, ..ClientSecurityOptions::default() };
    let (asker, _) = caller(env, options)?;
    for master in masters.split(',') {
        let deadline = env.now().mono.after(ATTEMPT);
        let connection = ClientConnection::connect(env, master.parse()?, &asker, deadline).await?;
        let call_options = CallOptions { features: vec![CONNECT_TO_MASTER], ..CallOptions::default() };
        let request = ConnectToMasterRequestPb {};
        let service = "kudu.master.MasterService";
        let asked = connection.call(service, "ConnectToMaster", &request, deadline, &call_options).await?;
        let reply: ConnectToMasterResponsePb = asked.message;
        let Some(token) = reply.authn_token else { continue };
        let demands = ClientSecurityOptions {
            encryption,
            require_authentication: true,
            ..ClientSecurityOptions::default()
        };
        let (bearer, security) = caller(env, demands)?;
        reply.ca_cert_der.iter().try_for_each(|der| security.tls.trust(der.to_vec()))?;
        security.set_token(token);
        return Ok(bearer);
    }
    Err(format!("no master of {masters} gave a token").into())
}

fn caller(
    env: &Env,
    options: ClientSecurityOptions,
) -> Result<(RpcCaller, Arc<ClientSecurity>), Box<dyn Error>> {
    let settings = TlsSettings::parse("rpc", "TLSv1.3", &[], "", "")?;
    let security = Arc::new(ClientSecurity::new(TlsCredentials::new(env, settings)?, options));
    Ok((RpcCaller::secure("drive", security.clone()), security))
}

/// Connects until the server accepts the token: it learns the token's key from a heartbeat.
async fn until_accepted(env: &Env, caller: &RpcCaller, address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    loop {
        match ClientConnection::connect(env, address, caller, env.now().mono.after(ATTEMPT)).await {
            Ok(_) => return Ok(()),
            Err(error) if begun.elapsed() > KEYS_KNOWN_WITHIN => return Err(error.into()),
            Err(_) => env.sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Returns the milliseconds of each connection, and the number of failed ones.
async fn connect_repeatedly(
    env: Env,
    caller: RpcCaller,
    address: SocketAddr,
    until: Instant,
) -> (Vec<f64>, u64) {
    let (mut latencies, mut failed) = (Vec::new(), 0);
    while Instant::now() < until {
        let begun = Instant::now();
        match ClientConnection::connect(&env, address, &caller, env.now().mono.after(ATTEMPT)).await {
            Ok(connection) => {
                latencies.push(begun.elapsed().as_secs_f64() * 1e3);
                connection.close("measured");
            }
            Err(error) => {
                eprintln!("drive: {error}");
                failed += 1;
            }
        }
    }
    (latencies, failed)
}
