//! Answers of the web port: health, metrics, pages.
//!
//! ```text
//!   GET path?query ──▶ /livez /readyz /healthz │ /metrics… │ /static/… │ a page ──▶ HTML, text or JSON
//! ```
//!
//! Every answer forbids scripts, frames and anything from another host, and is stored by no cache. Pages change
//! nothing: only GET and HEAD are answered.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use engine::time::Instant;
use http_body_util::Full;
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};

use super::flags::Flags;
use super::health::{HealthBoard, HealthCheck};
use super::pages::html::{self, PageFrame};
use super::pages::list_headers::list_headers;
use super::pages::options::{PageFormat, PageOptions};
use super::pages::page::WebPage;
use super::pages::registry::{PageBody, PageError, PageErrorKind};
use super::pages::startup_progress::StartupProgress;
use super::pages::{common_pages, json, overview, text as page_text};
use super::web_access::{Unproved, WebAccess};
use super::{ServerContext, ServerHealth};
use crate::dirs::ServerKind;
use nyala_common::env::Env;
use nyala_common::metrics::definition::MetricLevel;
use nyala_common::metrics::json as metrics_json;
use nyala_common::metrics::prometheus::{self, Naming};
use nyala_common::metrics::query::MetricQuery;

type Answer = Response<Full<Bytes>>;

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Paths of the REST catalog, whose errors are objects too.
const REST: &str = "/api/";

/// Browsers load the style and the icon of this server, and nothing else.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; \
                              base-uri 'none'; frame-ancestors 'none'";

/// State of the web port.
pub(super) struct WebState {
    kind: ServerKind,
    flags: Arc<Flags>,
    startup: Arc<StartupProgress>,
    pub(super) access: WebAccess,
    /// Signs of life, which are there before the server is.
    pub signs: HealthBoard,
    /// Set once the server exists.
    server: OnceLock<ServerContext>,
}

impl WebState {
    pub(super) fn new(
        kind: ServerKind,
        flags: Arc<Flags>,
        startup: Arc<StartupProgress>,
        access: WebAccess,
    ) -> WebState {
        WebState { kind, flags, startup, access, signs: HealthBoard::default(), server: OnceLock::new() }
    }

    /// Sets the server whose pages are shown.
    pub(super) fn attach(&self, common: ServerContext) {
        self.server.get_or_init(|| common);
    }
}

/// Returns the answer to a request.
pub(super) async fn respond<B>(web: &WebState, env: &Env, request: &Request<B>) -> Answer {
    let user = match web.access.check(env, request.uri().path(), request.headers()).await {
        Ok(user) => user,
        Err(why) => return unproved(why),
    };
    let now = env.now().mono;
    let method = request.method();
    if method != Method::GET && method != Method::HEAD {
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    let path = request.uri().path();
    if let Some(answer) = static_file(path) {
        return answer;
    }
    if path == "/livez" {
        return match web.signs.is_alive(now) {
            true => text(StatusCode::OK, "ok\n"),
            false => text(StatusCode::SERVICE_UNAVAILABLE, "hanging\n"),
        };
    }
    match web.server.get() {
        Some(common) => serving(web, common, now, request, user).await,
        None => starting(web, now, request),
    }
}

/// Returns the answer to a request without an accepted proof.
fn unproved(why: Unproved) -> Answer {
    match why {
        Unproved::Missing { challenge, text: why } => {
            let mut answer = text(StatusCode::UNAUTHORIZED, why);
            if let Ok(challenge) = HeaderValue::from_str(&challenge) {
                answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            }
            answer
        }
        Unproved::Busy => text(StatusCode::SERVICE_UNAVAILABLE, "too many passwords to check; try again\n"),
    }
}

/// Answers before the server exists.
fn starting<B>(web: &WebState, now: Instant, request: &Request<B>) -> Answer {
    let options = match PageOptions::parse(request.uri().query().unwrap_or_default()) {
        Ok(options) => options,
        Err(message) => return text(StatusCode::BAD_REQUEST, message + "\n"),
    };
    let path = request.uri().path();
    let frame = || PageFrame {
        server: web.kind.name().to_owned(),
        menu: vec![("/startup", "Startup"), ("/varz", "Settings"), ("/logs", "Log")],
        path: path.to_owned(),
    };
    match path {
        "/" => {
            let mut answer = text(StatusCode::TEMPORARY_REDIRECT, "starting; see /startup\n");
            answer.headers_mut().insert(LOCATION, HeaderValue::from_static("/startup"));
            answer
        }
        "/startup" => page(startup(web, now, &options), &options, frame),
        "/varz" => page(Ok(common_pages::settings(&web.flags).into()), &options, frame),
        "/logs" => page(common_pages::log(&options).map(PageBody::from), &options, frame),
        _ => text(StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
    }
}

fn startup(web: &WebState, now: Instant, options: &PageOptions) -> Result<PageBody, PageError> {
    Ok(match options.format {
        PageFormat::Json => PageBody::Json(web.startup.to_json(web.kind, now)),
        _ => web.startup.page(web.kind, now).into(),
    })
}

/// Answers for a server that exists. `user` is the one whom a ticket names.
async fn serving<B>(
    web: &WebState,
    common: &ServerContext,
    now: Instant,
    request: &Request<B>,
    user: Option<String>,
) -> Answer {
    let query = request.uri().query().unwrap_or_default();
    match request.uri().path() {
        "/metrics" | "/jsonmetricz" | "/metrics_prometheus" => metrics(common, request),
        "/healthz" => match common.status.health() {
            // Kudu's text, without a line end.
            ServerHealth::Healthy => text(StatusCode::OK, "OK"),
            ServerHealth::Starting => text(StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
            ServerHealth::Failed(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("failed: {why}\n")),
        },
        "/readyz" => readiness(common, query),
        path => match PageOptions::parse(query) {
            Ok(mut options) => {
                options.user = user;
                if path.starts_with(REST) {
                    options.format = PageFormat::Json;
                }
                let content = content(web, common, now, path, &options).await;
                page(content, &options, || frame(common, path))
            }
            Err(message) => text(StatusCode::BAD_REQUEST, message + "\n"),
        },
    }
}

/// Returns the content of a page.
async fn content(
    web: &WebState,
    common: &ServerContext,
    now: Instant,
    path: &str,
    options: &PageOptions,
) -> Result<PageBody, PageError> {
    Ok(match path {
        // Kudu's page of links to pages; here the overview has them.
        "/" | "/dashboards" => overview::overview(common, now).await.into(),
        "/startup" => return startup(web, now, options),
        "/varz" => common_pages::settings(&common.flags).into(),
        "/config" => common_pages::security(common).into(),
        "/mem-trackers" => common_pages::memory(&common.memory.usage()).into(),
        "/logs" => common_pages::log(options)?.into(),
        "/version" => PageBody::Json(common_pages::version()),
        path => match common.pages.source(path) {
            Some(source) => return source(options.clone()).await,
            None => {
                let absent = common_pages::absent(path).map(str::to_owned);
                let message =
                    absent.unwrap_or_else(|| format!("No handler for URI {path}; / links to all pages"));
                return Err(PageError::new(PageErrorKind::NotFound, message));
            }
        },
    })
}

fn frame(common: &ServerContext, path: &str) -> PageFrame {
    let mut menu = common_pages::MENU_FIRST.to_vec();
    menu.extend(common.pages.menu());
    menu.extend(common_pages::MENU_LAST);
    let server = format!("{} {}", common.kind.name(), common.status.uuid());
    PageFrame { server, menu, path: path.to_owned() }
}

/// Renders a page in the form that the options ask for.
fn page(
    content: Result<PageBody, PageError>,
    options: &PageOptions,
    frame: impl FnOnce() -> PageFrame,
) -> Answer {
    let page: Box<WebPage> = match content {
        Ok(PageBody::Page(page)) => page,
        Ok(PageBody::Json(value)) => return answer(StatusCode::OK, JSON, json::encode(&value)),
        Ok(PageBody::File(kind, bytes)) => return answer(StatusCode::OK, kind, bytes),
        Err(error) => {
            let status = match error.kind {
                PageErrorKind::BadRequest => StatusCode::BAD_REQUEST,
                PageErrorKind::Forbidden => StatusCode::FORBIDDEN,
                PageErrorKind::NotFound => StatusCode::NOT_FOUND,
                PageErrorKind::NotReady => StatusCode::SERVICE_UNAVAILABLE,
            };
            return match options.format {
                PageFormat::Json => {
                    let object = serde_json::json!({ "error": error.message });
                    answer(status, JSON, json::encode(&object))
                }
                _ => text(status, error.message + "\n"),
            };
        }
    };
    let mut answer = match options.format {
        PageFormat::Html => answer(StatusCode::OK, HTML, html::render(&page, options, &frame())),
        PageFormat::Text => text(StatusCode::OK, page_text::render(&page, options)),
        PageFormat::Json => answer(StatusCode::OK, JSON, json::render(&page, options)),
    };
    for (name, value) in list_headers(&page, options) {
        if let Ok(value) = HeaderValue::from_str(&value) {
            answer.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    answer
}

/// Returns a static file, which browsers may keep: its path changes with the content.
fn static_file(path: &str) -> Option<Answer> {
    let (kind, body) = match path {
        path if path == html::static_path("style.css") => ("text/css; charset=utf-8", html::STYLE),
        path if path == html::static_path("icon.svg") => ("image/svg+xml", html::ICON),
        _ => return None,
    };
    let mut file = answer(StatusCode::OK, kind, body);
    let keep = HeaderValue::from_static("public, max-age=31536000, immutable");
    file.headers_mut().insert(CACHE_CONTROL, keep);
    Some(file)
}

/// Returns the metrics: Prometheus' text on its own path and for its scraper; JSON otherwise.
fn metrics<B>(common: &ServerContext, request: &Request<B>) -> Answer {
    let query = match MetricQuery::parse(request.uri().query().unwrap_or_default()) {
        Ok(query) => query,
        Err(message) => return text(StatusCode::BAD_REQUEST, message + "\n"),
    };
    let snapshot = common.metrics.snapshot();
    let (kind, body) = match request.uri().path() {
        "/metrics" | "/jsonmetricz" if !is_scrape(request) => (JSON, metrics_json::render(snapshot, &query)),
        _ => {
            let query = query.or_level(MetricLevel::Info);
            (PROMETHEUS, prometheus::render(snapshot, &query, Naming::ByRole))
        }
    };
    answer(StatusCode::OK, kind, body)
}

/// Returns true if a request accepts what Prometheus' scraper asks for: OpenMetrics, or a version of its text. Clients
/// that read JSON accept `text/plain` as well, without a version.
fn is_scrape<B>(request: &Request<B>) -> bool {
    let accepted = request.headers().get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let mut is_scrape = false;
    for range in accepted.flat_map(|accept| accept.split(',')) {
        let range = range.to_ascii_lowercase();
        let mut parts = range.split(';').map(str::trim);
        match parts.next() {
            Some("application/json") => return false,
            Some("application/openmetrics-text") => is_scrape = true,
            Some("text/plain") => is_scrape |= parts.any(|part| part == "version=0.0.4"),
            _ => {}
        }
    }
    is_scrape
}

/// Returns the checks, one a line, or as JSON with `format=json`. `strict=1` fails on warnings too.
fn readiness(common: &ServerContext, query: &str) -> Answer {
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
        return text(status, checks.iter().map(line).collect::<String>());
    }
    let object = |check: &HealthCheck| {
        let (state, detail) = check.parts();
        serde_json::json!({ "name": check.name, "state": state, "detail": detail })
    };
    let shown: Vec<_> = checks.iter().map(object).collect();
    answer(status, JSON, json::encode(&serde_json::json!({ "ready": ready, "checks": shown })))
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, TEXT, body)
}

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}
