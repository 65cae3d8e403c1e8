//! The web port: metrics for Prometheus, health for monitoring, flags and memory for operators.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::error::Result;
use engine::memory::MemUsage;
use engine::time::Instant;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use super::health::{HealthBoard, HealthCheck};
use super::web_connections::{
    ConnectionLimits, ConnectionState, Connections, HEADER_TIMEOUT, OpenConnection, REQUEST_TIMEOUT,
};
use super::{ServerContext, ServerHealth, VERSION};
use nyala_common::env::{Env, Listener, Stream, TaskHandle};
use nyala_common::metrics::definition::MetricLevel;
use nyala_common::metrics::json;
use nyala_common::metrics::prometheus::{self, Naming};
use nyala_common::metrics::query::MetricQuery;

/// Largest header of a request in bytes.
const HEADER_BYTES_MAX: usize = 8 << 10;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A served web port. Dropping it stops it.
pub struct WebHandle {
    local_addr: SocketAddr,
    tasks: [Box<dyn TaskHandle>; 2],
}

impl WebHandle {
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }
}

impl Drop for WebHandle {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|task| task.abort());
    }
}

/// Serves a server's web pages at `addr`, and sets the address in its status.
pub async fn serve(env: &Env, addr: SocketAddr, common: ServerContext) -> Result<WebHandle> {
    let listener = super::listen(env, addr, "webserver_port").await?;
    let local_addr = listener.local_addr();
    common.status.set_web(local_addr);
    let common = Arc::new(common);
    let (of, signs_env) = (common.clone(), env.clone());
    let signs = env.spawn("signs of life", async move { of.checks.give_signs_of_life(&signs_env).await });
    let accepting = env.spawn("web accept", accept(env.clone(), listener, common));
    Ok(WebHandle { local_addr, tasks: [accepting, signs] })
}

async fn accept(env: Env, mut listener: Box<dyn Listener>, common: Arc<ServerContext>) {
    let connections = Connections::new(ConnectionLimits::default());
    loop {
        match listener.accept().await {
            Ok((stream, remote)) => match connections.enter(remote.ip()) {
                Some(open) => {
                    let task = serve_connection(env.clone(), stream, open, common.clone());
                    env.spawn("web connection", task);
                }
                None => tracing::debug!(%remote, "too many web connections; one is closed"),
            },
            Err(error) => {
                tracing::warn!(%error, "accepting a web connection failed");
                env.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(env: Env, stream: Stream, open: OpenConnection, common: Arc<ServerContext>) {
    tokio::select! {
        biased;
        () = answer(&env, stream, open.state.clone(), common) => {}
        () = open.state.dropped() => {}
        () = until_silent(&env, &open.state) => tracing::debug!("a web connection without a request is closed"),
    }
}

/// Waits until no request has come for too long.
async fn until_silent(env: &Env, connection: &ConnectionState) {
    let mut known = 0;
    loop {
        env.sleep(if known == 0 { HEADER_TIMEOUT } else { REQUEST_TIMEOUT }).await;
        let requests = connection.requests();
        if requests == known {
            return;
        }
        known = requests;
    }
}

async fn answer(env: &Env, stream: Stream, state: Arc<ConnectionState>, common: Arc<ServerContext>) {
    let clock = env.clock.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        state.request_begun();
        let response = respond(&common, clock.now().mono, &request);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.auto_date_header(false).max_buf_size(HEADER_BYTES_MAX);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a web connection ended early");
    }
}

fn respond<B>(common: &ServerContext, now: Instant, request: &Request<B>) -> Response<Full<Bytes>> {
    let (method, path) = (request.method(), request.uri().path());
    let query = request.uri().query().unwrap_or_default();
    if method != Method::GET && method != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_string());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/" => text(StatusCode::OK, index(common)),
        "/metrics" | "/jsonmetricz" | "/metrics_prometheus" => metrics(common, request),
        "/healthz" => match common.status.health() {
            // Kudu's text, without a line end.
            ServerHealth::Healthy => text(StatusCode::OK, "OK".to_string()),
            ServerHealth::Starting => text(StatusCode::SERVICE_UNAVAILABLE, "starting\n".to_string()),
            ServerHealth::Failed(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("failed: {why}\n")),
        },
        "/livez" => match common.checks.is_alive(now) {
            true => text(StatusCode::OK, "ok\n".to_string()),
            false => text(StatusCode::SERVICE_UNAVAILABLE, "hanging\n".to_string()),
        },
        "/readyz" => readiness(common, query),
        "/varz" => text(StatusCode::OK, settings(common)),
        "/mem-trackers" => {
            let mut page = String::new();
            memory(&common.memory.usage(), 0, &mut page);
            text(StatusCode::OK, page)
        }
        _ => text(StatusCode::NOT_FOUND, format!("{path}: not found; / lists the pages\n")),
    }
}

/// Returns the metrics: Prometheus' text on its own path and for clients that ask for text, as its scraper does; JSON
/// otherwise.
fn metrics<B>(common: &ServerContext, request: &Request<B>) -> Response<Full<Bytes>> {
    let query = match MetricQuery::parse(request.uri().query().unwrap_or_default()) {
        Ok(query) => query,
        Err(message) => return text(StatusCode::BAD_REQUEST, message + "\n"),
    };
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let wants_text = accept.contains("text/plain") || accept.contains("openmetrics");
    let snapshot = common.metrics.snapshot();
    let (body, kind) = match request.uri().path() {
        "/metrics" | "/jsonmetricz" if !wants_text => (json::render(snapshot, &query), JSON),
        _ => (prometheus::render(snapshot, &query.or_level(MetricLevel::Info), Naming::ByRole), PROMETHEUS),
    };
    let mut response = text(StatusCode::OK, body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

const JSON: &str = "application/json";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the checks, one a line, or as JSON with `format=json`. `strict=1` fails on warnings too.
fn readiness(common: &ServerContext, query: &str) -> Response<Full<Bytes>> {
    let asks = |option: &str| query.split('&').any(|given| given == option);
    let mut checks = vec![common.status.check()];
    checks.extend(common.checks.checks());
    let ready = HealthBoard::is_ready(&checks, asks("strict=1"));
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if !asks("format=json") {
        let line = |check: &HealthCheck| {
            let (state, detail) = check.parts();
            format!("{}: {state}: {detail}\n", check.name)
        };
        return text(status, checks.iter().map(line).collect());
    }
    let object = |check: &HealthCheck| {
        let (state, detail) = check.parts();
        serde_json::json!({ "name": check.name, "state": state, "detail": detail })
    };
    let shown: Vec<_> = checks.iter().map(object).collect();
    let mut response = text(status, serde_json::json!({ "ready": ready, "checks": shown }).to_string());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn index(common: &ServerContext) -> String {
    format!(
        "{VERSION}, {} {}, RPC at {}\n\n\
         /metrics       numbers, as JSON in Kudu's form\n\
         /metrics_prometheus  the same for Prometheus\n\
         /livez         200 if its tasks run; restart it otherwise\n\
         /readyz        200 if it can be sent work, and why not otherwise\n\
         /healthz       200 if it has started and has not failed\n\
         /varz          settings\n\
         /mem-trackers  where the memory is\n",
        common.kind.name(),
        common.status.uuid(),
        common.status.rpc_addresses().join(", "),
    )
}

fn settings(common: &ServerContext) -> String {
    let line = |current: super::flags::FlagState| {
        let mark = if current.is_default() { ' ' } else { '*' };
        let effect = if current.spec.has_effect() { "" } else { "  (inert)" };
        format!("{mark} --{}={}{effect}\n", current.spec.name, current.value)
    };
    let all = common.flags.all();
    let lines: String = all.into_iter().map(line).collect();
    format!("* differs from the default; (inert): taken as Kudu's, without effect here\n\n{lines}")
}

fn memory(usage: &MemUsage, depth: usize, page: &mut String) {
    let limit = usage.limit.map_or("none".to_string(), |limit| limit.to_string());
    let indent = "  ".repeat(depth);
    let line =
        format!("{indent}{}  bytes={} peak={} limit={limit}\n", usage.id, usage.bytes, usage.peak_bytes);
    page.push_str(&line);
    usage.children.iter().for_each(|child| memory(child, depth + 1, page));
}
