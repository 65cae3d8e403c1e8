//! Pages that every server has: settings, security, memory, logs, version.

use engine::memory::MemUsage;
use serde_json::{Value, json};

use super::options::PageOptions;
use super::page::{PageBlock, PageCell, PageTable, Severity, WebPage, fact};
use super::registry::{PageError, PageErrorKind};
use crate::server::flags::{FlagState, Flags, is_secret};
use crate::server::logging;
use crate::server::{SOFTWARE_VERSION, ServerContext};

/// Path and name of these pages in the menu, before and after those of the server's kind.
pub const MENU_FIRST: [(&str, &str); 1] = [("/", "Overview")];
pub const MENU_LAST: [(&str, &str); 8] = [
    ("/varz", "Settings"),
    ("/config", "Security"),
    ("/mem-trackers", "Memory"),
    ("/logs", "Log"),
    ("/startup", "Startup"),
    ("/metrics", "Metrics"),
    ("/metrics_prometheus", "Prometheus"),
    ("/readyz", "Readiness"),
];

/// Value shown in place of a secret.
const REDACTED: &str = "[redacted]";

/// Returns what to use instead of a page of Kudu's that is not here, if the path is one.
pub fn absent(path: &str) -> Option<&'static str> {
    Some(match path {
        "/tracing.html" => {
            "tracing: spans are files; see the setting trace_dir, and /rpcz?html for sampled calls"
        }
        _ => return None,
    })
}

/// Returns the value of a flag, if it is no secret.
fn shown_value(flag: &FlagState) -> String {
    if is_secret(flag.spec.name) && !flag.value.is_empty() { REDACTED.to_owned() } else { flag.value.clone() }
}

/// Returns the settings. Its text has Kudu's two parts: the settings that are not at their default, then all.
pub fn settings(flags: &Flags) -> WebPage {
    let all = flags.all();
    let columns = [
        ("name", "Name"),
        ("value", "Value"),
        ("default", "Default"),
        ("state", "State"),
        ("runtime", "Run time"),
        ("tags", "Tags"),
        ("help", "Meaning"),
    ];
    let mut table = PageTable::new(&columns);
    for flag in &all {
        let state = match (flag.is_default(), flag.spec.has_effect()) {
            (_, false) => PageCell::State(Severity::Neutral, "inert".to_owned()),
            (true, true) => PageCell::Empty,
            (false, true) => PageCell::State(Severity::Good, "set".to_owned()),
        };
        table.row(vec![
            flag.spec.name.into(),
            shown_value(flag).into(),
            flag.spec.default.into(),
            state,
            if flag.spec.runtime { "can be changed".into() } else { PageCell::Empty },
            flag.spec.tags.join(", ").into(),
            flag.spec.help.into(),
        ]);
    }
    let line = |flag: &FlagState| format!("--{}={}\n", flag.spec.name, shown_value(flag));
    let set: String = all.iter().filter(|flag| !flag.is_default()).map(line).collect();
    let every: String = all.iter().map(line).collect();
    let count = all.iter().filter(|flag| !flag.is_default()).count();
    let facts = vec![
        fact("set", "settings that are not at their default", count),
        fact("all", "settings", all.len()),
    ];
    WebPage {
        raw: Some(format!("Non-default settings\n{set}\nAll settings\n{every}")),
        ..WebPage::new("Settings").with(PageBlock::facts("counts", "", facts)).with(PageBlock::table(
            "settings",
            "All settings",
            table,
        ))
    }
}

/// Settings of the security posture, with the values that protect nothing.
const SECURITY: [(&str, &[&str]); 9] = [
    ("rpc_authentication", &["disabled", "optional"]),
    ("rpc_encryption", &["disabled", "optional"]),
    ("superuser_acl", &["*"]),
    ("user_acl", &["*"]),
    ("tserver_enforce_access_control", &["false"]),
    ("encrypt_data_at_rest", &["false"]),
    ("webserver_require_spnego", &["false"]),
    ("redact", &["none"]),
    ("time_source", &[]),
];

/// Returns what protects the server, and its clock.
pub fn security(common: &ServerContext) -> WebPage {
    let mut table = PageTable::new(&[("name", "Setting"), ("value", "Value"), ("state", "State")]);
    let mut open = Vec::new();
    let all = common.flags.all();
    for (name, unsafe_values) in SECURITY {
        let Some(flag) = all.iter().find(|flag| flag.spec.name == name) else { continue };
        let protects = !unsafe_values.contains(&flag.value.as_str());
        let state = match protects {
            true => PageCell::State(Severity::Good, "ok".to_owned()),
            false => PageCell::State(Severity::Warning, "does not protect".to_owned()),
        };
        if !protects {
            open.push(name);
        }
        table.row(vec![name.into(), shown_value(flag).into(), state]);
    }
    let page = WebPage::new("Security");
    let page = match open.as_slice() {
        [] => page.verdict(Severity::Good, "every setting protects"),
        open => {
            page.verdict(Severity::Warning, format!("these settings do not protect: {}", open.join(", ")))
        }
    };
    let fault = common.clock.fault().unwrap_or_else(|| "within its bound, or not checked".to_owned());
    page.with(PageBlock::table("security", "Settings", table)).with(PageBlock::facts(
        "clock",
        "Clock",
        vec![fact("state", "clock", fault)],
    ))
}

/// Returns where the memory is.
pub fn memory(usage: &MemUsage) -> WebPage {
    let columns =
        [("id", "Id"), ("parent", "Parent"), ("limit", "Limit"), ("current", "Current"), ("peak", "Peak")];
    let mut table = PageTable::new(&columns);
    add_tracker(usage, &mut table);
    let page = WebPage::new("Memory");
    let page = match usage.limit {
        Some(limit) if limit > 0 => {
            let percent = usage.bytes.saturating_mul(100) / limit;
            let severity = if percent > 95 { Severity::Warning } else { Severity::Good };
            page.verdict(severity, format!("{percent} % of the limit is in use"))
        }
        _ => page,
    };
    page.with(PageBlock::table("trackers", "Memory trackers", table))
}

fn add_tracker(usage: &MemUsage, table: &mut PageTable) {
    table.row(vec![
        usage.id.clone().into(),
        usage.parent_id.clone().into(),
        usage.limit.map(PageCell::Bytes).into(),
        PageCell::Bytes(usage.bytes),
        PageCell::Bytes(usage.peak_bytes),
    ]);
    usage.children.iter().for_each(|child| add_tracker(child, table));
}

/// Returns the latest lines of the log; `?level=` and `?q=` select.
pub fn log(options: &PageOptions) -> Result<WebPage, PageError> {
    let given = options.param("level").unwrap_or("trace");
    let level = given.parse().map_err(|_| {
        let message = format!("level: unknown ({given:?}, one of error, warn, info, debug, trace)");
        PageError::new(PageErrorKind::BadRequest, message)
    })?;
    let lines = logging::recent(level, &options.filter).concat();
    Ok(WebPage {
        raw: Some(lines.clone()),
        ..WebPage::new("Log").with(PageBlock::text("lines", "Latest lines, the last at the end", lines))
    })
}

/// Returns the object of Kudu's page `/version`.
pub fn version() -> Value {
    json!({ "version_info": {
        "git_hash": "",
        "build_hostname": "",
        "build_timestamp": "",
        "build_username": "",
        "build_clean_repo": true,
        "build_id": "",
        "build_type": if cfg!(debug_assertions) { "DEBUG" } else { "RELEASE" },
        "version_string": SOFTWARE_VERSION,
    }})
}
