//! A crawl of the web pages of a cluster with names from a hostile client: every link leads to a page, every page is
//! well-formed, and no name becomes markup.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use engine::schema::row_ops::{ClientCell, RowOpKind};
use node::server::cluster::{Cluster, ClusterConfig, PortAssignment};
use node::server::flags::Flags;
use nyala_client::{Client, DataType};
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TABLE: &str = "\"><img src=x onerror=alert(1)>";
const COLUMN: &str = "javascript:alert(1)";
const OWNER: &str = "\u{202e}renwo</bdi>";

struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

async fn get(env: &Env, address: SocketAddr, path: &str) -> Answer {
    let deadline = env.now().mono.after(Duration::from_secs(20));
    let mut stream = env.net.connect(address, deadline).await.expect("the web port");
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("an open connection");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("UTF-8");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.lines();
    let status =
        lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status").parse().expect("a number");
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
    Answer { status, headers, body: body.to_owned() }
}

/// Returns the targets of links, forms aside.
fn links(html: &str) -> Vec<String> {
    let targets = html.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    targets.map(|target| target.replace("&#38;", "&").split('#').next().unwrap_or("").to_owned()).collect()
}

/// Elements without an end tag.
const VOID: [&str; 4] = ["meta", "link", "input", "!DOCTYPE"];

/// Checks that every tag is closed in order, and that there is no script, handler or style in the markup.
fn check_markup(url: &str, html: &str) {
    let mut open: Vec<&str> = Vec::new();
    for tag in html.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').unwrap_or_else(|| panic!("{url}: a tag has no end: {tag}"));
        let bare: String = tag.split('"').step_by(2).collect();
        assert!(!bare.contains(" on") && !bare.contains(" style="), "{url}: {tag}");
        let name = tag.split_whitespace().next().unwrap_or_default();
        assert!(!["script", "img", "iframe", "object", "style", "base"].contains(&name), "{url}: {tag}");
        match name.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed), "{url}"),
            None if VOID.contains(&name) => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "{url}: {open:?}");
}

fn check_headers(url: &str, answer: &Answer) {
    let policy = &answer.headers["content-security-policy"];
    assert!(policy.starts_with("default-src 'none'; style-src 'self'; img-src 'self'"), "{url}: {policy}");
    assert_eq!(answer.headers["x-content-type-options"], "nosniff", "{url}");
    assert_eq!(answer.headers["x-frame-options"], "DENY", "{url}");
}

/// Returns true for links that a crawl follows: a sorted or refreshed form of a page is not varied further.
fn is_followed(from: &str, to: &str) -> bool {
    let is_form = |url: &str| ["sort=", "refresh=", "format="].iter().any(|word| url.contains(word));
    !(is_form(from) && is_form(to))
}

/// Findings of a crawl.
#[derive(Default)]
struct Crawl {
    /// Paths without their queries.
    paths: BTreeSet<String>,
    /// HTML of all pages.
    html: String,
}

/// Returns the server and the path that a link of a page leads to.
fn target(address: SocketAddr, path: &str, link: &str) -> (SocketAddr, String) {
    match link.strip_prefix("http://") {
        Some(rest) => {
            let (host, path) = rest.split_once('/').expect("a path");
            (host.parse().expect("an address"), format!("/{path}"))
        }
        None if link.starts_with('?') => {
            (address, format!("{}{link}", path.split('?').next().unwrap_or_default()))
        }
        None => (address, link.to_owned()),
    }
}

/// Follows every link from the overviews of these servers, and checks each answer.
async fn crawl(env: &Env, addresses: &BTreeSet<SocketAddr>) -> Crawl {
    let mut queue: Vec<(SocketAddr, String)> = addresses.iter().map(|at| (*at, "/".to_owned())).collect();
    let mut seen: BTreeSet<(SocketAddr, String)> = queue.iter().cloned().collect();
    let mut found = Crawl::default();
    while let Some((address, path)) = queue.pop() {
        let url = format!("{address}{path}");
        let answer = get(env, address, &path).await;
        assert_eq!(answer.status, 200, "{url}: {}", answer.body);
        check_headers(&url, &answer);
        found.paths.insert(path.split('?').next().unwrap_or_default().to_owned());
        match answer.headers["content-type"].as_str() {
            "application/json" => {
                let json: Result<serde_json::Value, _> = serde_json::from_str(&answer.body);
                assert!(json.is_ok(), "{url}: {json:?}");
                assert!(!path.starts_with("/table") || !answer.body.contains('<'), "{url}");
            }
            "text/html; charset=utf-8" => {
                check_markup(&url, &answer.body);
                found.html.push_str(&answer.body);
                for link in links(&answer.body).iter().filter(|link| is_followed(&path, link)) {
                    let target = target(address, &path, link);
                    assert!(addresses.contains(&target.0), "{url}: {link}");
                    if seen.insert(target.clone()) {
                        queue.push(target);
                    }
                }
            }
            _ => {}
        }
    }
    found
}

/// Pages that must be linked from somewhere.
const LINKED: &[&str] = &[
    "/",
    "/check",
    "/config",
    "/log-anchors",
    "/logs",
    "/maintenance-manager",
    "/masters",
    "/mem-trackers",
    "/memz",
    "/metrics",
    "/rpcz",
    "/scans",
    "/scrub",
    "/stacks",
    "/startup",
    "/table",
    "/tables",
    "/tablet",
    "/tablet-consensus-status",
    "/tablet-rowsetlayout-svg",
    "/tablet-servers",
    "/tablets",
    "/threadz",
    "/transactions",
    "/varz",
];

async fn cluster(env: &Env, dir: &tempfile::TempDir) -> Cluster {
    let flags = Flags::new();
    flags.set("log_sync", "false").expect("a flag");
    let config = ClusterConfig {
        dir: dir.path().to_str().expect("UTF-8").to_string(),
        masters: 3,
        tablet_servers: 3,
        ip: [127, 0, 0, 1].into(),
        ports: PortAssignment::Free,
        flags,
    };
    Cluster::start(env, &config).await.expect("free ports and a fresh directory")
}

/// Checks the objects of the REST catalog about a table of a key and a column, hashed into two buckets.
async fn check_rest(env: &Env, leader: SocketAddr, table: &str) {
    let read = async |path: &str| {
        let answer = get(env, leader, path).await;
        assert_eq!(
            (answer.status, answer.headers["content-type"].as_str()),
            (200, "application/json"),
            "{path}"
        );
        serde_json::from_str::<serde_json::Value>(&answer.body).expect("JSON")
    };
    let tables = json!({ "tables": [{ "table_id": table, "table_name": TABLE }] });
    assert_eq!(read("/api/v1/tables").await, tables);
    assert_eq!(read("/api/v1/leader").await, json!({ "leader": format!("http://{leader}") }));
    let spec = read("/api/v1/spec").await;
    let shown = read(&format!("/api/v1/tables/{table}?id=x")).await;
    let described = &spec["paths"]["/api/v1/tables/{table_id}"]["get"]["responses"]["200"];
    let described = &described["content"]["application/json"]["schema"]["properties"];
    let names = |object: &serde_json::Value| {
        object.as_object().expect("an object").keys().cloned().collect::<Vec<_>>()
    };
    assert_eq!((spec["paths"].as_object().expect("paths").len(), names(described)), (3, names(&shown)));
    assert_eq!((&shown["id"], &shown["owner"]), (&json!(table), &json!(OWNER)));
    let [key, column] = &shown["schema"]["columns"].as_array().expect("a list")[..] else {
        panic!("{shown}")
    };
    assert_eq!((&key["name"], &key["type"], &key["is_key"]), (&json!("id"), &json!("INT64"), &json!(true)));
    assert_eq!((&column["name"], &column["is_nullable"]), (&json!(COLUMN), &json!(true)));
    let hash = &shown["partition_schema"]["hash_schema"][0];
    assert_eq!((&hash["columns"], &hash["num_buckets"]), (&json!([{ "id": key["id"] }]), &json!(2)));
    let missing = get(env, leader, "/api/v1/tables/00000000000000000000000000000000").await;
    let error = json!({ "error": "there is no table 00000000000000000000000000000000" });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&missing.body).expect("JSON"), error);
}

/// Returns the trace of a sampled Write call, if a server has one.
async fn sampled_write(env: &Env, server: SocketAddr) -> Option<String> {
    let answer = get(env, server, "/rpcz").await;
    let object: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    let methods = object["sampled"]["methods"].as_array().expect("a list").clone();
    let is_write =
        |method: &&serde_json::Value| method["method_name"] == "kudu.tserver.TabletServerService.Write";
    let trace = methods.iter().find(is_write)?["samples"][0]["trace"].as_str()?;
    Some(trace.to_owned())
}

/// Checks that a write's steps are on the page of a server's calls. The call is sampled after its reply.
async fn check_steps(env: &Env, servers: &[SocketAddr]) {
    let found = async {
        loop {
            for server in servers {
                if let Some(trace) = sampled_write(env, *server).await {
                    return (*server, trace);
                }
            }
        }
    };
    let (server, trace) = env.timeout(Duration::from_secs(20), found).await.expect("a sampled write");
    let steps: Vec<&str> =
        trace.lines().filter_map(|line| line.split_once(": ")).map(|(_, step)| step).collect();
    assert!(steps[0].starts_with("received from 127.0.0.1:"), "{trace}");
    for step in [
        "admitted",
        "decoded",
        "prepared",
        "appending",
        "appended",
        "logged",
        "replicated",
        "applied",
        "answered",
    ] {
        assert!(steps.contains(&step), "no {step}: {trace}");
    }
    assert_eq!((steps[1], steps.last()), ("admitted", Some(&"answered")), "{trace}");
    assert!(get(env, server, "/rpcz?html").await.body.contains(", prepared "), "people see them too");
}

/// Waits until servers are ready: each has told a leading master of itself.
async fn ready(env: &Env, servers: &BTreeSet<SocketAddr>) {
    let all_ready = async {
        for server in servers {
            while get(env, *server, "/readyz").await.status != 200 {}
        }
    };
    env.timeout(Duration::from_secs(20), all_ready).await.expect("servers that are ready");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_link_leads_to_a_page() {
    let env: Env = OsEnv::new(&OsOptions::default()).expect("this machine");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut cluster = cluster(&env, &dir).await;
    let servers = cluster.masters().iter().chain(cluster.tablet_servers());
    let addresses: BTreeSet<SocketAddr> = servers.filter_map(|server| server.web_addr()).collect();
    ready(&env, &addresses).await;
    let client = Client::builder(cluster.master_addresses()).connect().await.expect("a leader");
    let table = client.new_table(TABLE).key("id", DataType::Int64).nullable(COLUMN, DataType::String);
    let table = table
        .owner(OWNER)
        .comment("\u{1f9a8}".repeat(60))
        .hash(["id"], 2)
        .create()
        .await
        .expect("a new table");

    let mut writer = table.writer();
    let key = 7i64.to_le_bytes();
    let row = [ClientCell::Value(&key), ClientCell::Null];
    writer.apply_cells(RowOpKind::Insert, &row).await.expect("a legal row");
    writer.flush().await.expect("written");
    let tservers: Vec<SocketAddr> =
        cluster.tablet_servers().iter().filter_map(|server| server.web_addr()).collect();
    check_steps(&env, &tservers).await;

    let Crawl { paths, html } = crawl(&env, &addresses).await;
    for path in LINKED {
        assert!(paths.contains(*path), "{path} is linked from nowhere: {paths:?}");
    }
    assert!(html.contains("&#62;&#60;img src=x onerror=alert(1)&#62;"), "the name of the table is shown");
    assert!(html.contains("\\u{202e}renwo&#60;/bdi&#62;") && !html.contains('\u{202e}'), "and its owner");

    let leader = cluster.masters().iter().find(|master| master.leads()).and_then(|master| master.web_addr());
    let authority = get(&env, leader.expect("a leader"), "/ipki-ca-cert-pem").await;
    assert!(authority.status == 200 && authority.body.starts_with("-----BEGIN CERTIFICATE-----\n"));
    check_headers("/ipki-ca-cert-pem", &authority);
    check_rest(&env, leader.expect("a leader"), table.id()).await;
    for (path, status) in [
        ("/api/v1/tables/0", 400),
        ("/api/v1/tables/00000000000000000000000000000000", 404),
        ("/api/v1/nothing", 404),
        ("/table", 400),
        ("/table?id=%22%3E", 400),
        ("/table?id=00000000000000000000000000000000", 404),
        ("/nothing", 404),
        ("/tables?page=x", 400),
    ] {
        let answer = get(&env, leader.expect("a leader"), path).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        check_headers(path, &answer);
    }
    cluster.shutdown().await;
}
