//! Pages of a server's web port, for the bundle.

use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, Result};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;

use super::archive::Bundle;
use nyala_common::env::Env;

/// Pages of servers of both kinds, and the names of their files. Pages that a server does not have are left out.
const PAGES: [(&str, &str); 23] = [
    ("/?raw", "overview.txt"),
    ("/readyz", "readyz.txt"),
    ("/version", "version.json"),
    ("/varz?raw", "flags.txt"),
    ("/config?raw", "config.txt"),
    ("/startup?raw", "startup.txt"),
    ("/metrics", "metrics.json"),
    ("/metrics_prometheus", "metrics.prom"),
    ("/mem-trackers?raw", "memory.txt"),
    ("/stacks?raw", "tasks.txt"),
    ("/rpcz", "rpcz.json"),
    ("/scrub?raw", "scrub.txt"),
    ("/logs?raw", "log.txt"),
    ("/check?raw", "check.txt"),
    ("/masters?raw", "masters.txt"),
    ("/tablet-servers?raw", "tablet-servers.txt"),
    ("/tables?raw", "tables.txt"),
    ("/dump-entities", "entities.json"),
    ("/tablets?raw", "tablets.txt"),
    ("/scans?raw", "scans.txt"),
    ("/transactions?raw", "operations.txt"),
    ("/maintenance-manager?format=json", "maintenance.json"),
    ("/livez", "livez.txt"),
];

/// Deadline of one page.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Adds the pages of the web port at `web` to the bundle.
pub(super) async fn collect(env: &Env, web: &str, dir: &str, bundle: &mut Bundle) {
    for (path, name) in PAGES {
        let file = format!("{dir}/{name}");
        let got = env.timeout(TIMEOUT, get(env, web, path)).await;
        match got.unwrap_or_else(|| Err(Error::timed_out(format!("{web}{path} did not reply in time")))) {
            Ok((StatusCode::NOT_FOUND, _)) => {}
            // A server that is not ready says why in the body.
            Ok((_, bytes)) => bundle.add(&file, bytes),
            Err(error) => {
                bundle.failed(&file, &error.message);
                // The other pages of a dead port take as long.
                return;
            }
        }
    }
}

/// Returns status and body of a page.
async fn get(env: &Env, web: &str, path: &str) -> Result<(StatusCode, Vec<u8>)> {
    let found =
        env.net.resolve(web).await.map_err(|error| Error::io(format_args!("look up {web}"), &error))?;
    let addr = *found.first().ok_or_else(|| Error::not_found(format!("{web} has no address")))?;
    let deadline = env.now().mono.after(TIMEOUT);
    let stream = env.net.connect(addr, deadline).await;
    let stream = stream.map_err(|error| Error::io(format_args!("connect to {web}"), &error))?;
    let failed = |error: hyper::Error| Error::aborted(format!("{web}{path}: {error}"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    drop(env.spawn("web page", async move { drop(connection.await) }));
    let request = Request::get(path).header(HOST, web).body(Empty::<Bytes>::new());
    let request = request.map_err(|error| Error::invalid(format!("{web}{path}: {error}")))?;
    let response = sender.send_request(request).await.map_err(failed)?;
    let status = response.status();
    let body = response.into_body().collect().await.map_err(failed)?;
    Ok((status, body.to_bytes().to_vec()))
}
