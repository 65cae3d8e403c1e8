//! `kudu.server.GenericService`: a server's identity, clock, flags and memory.

use std::sync::Arc;

use bytes::Bytes;
use engine::memory::MemUsage;
use prost::Message;

use crate::dirs::ServerKind;
use crate::server_clock::ServerClock;
use nyala_common::env::BoxFuture;
use nyala_common::rpc::request_limits::RequestLimits;
use nyala_common::rpc::{Call, MethodInfo, Reply, Service};
use nyala_common::security::acl::MethodRole;
use nyala_common::service_methods;
use nyala_proto::kudu::MemTrackerPb;
use nyala_proto::kudu::server::get_flags_response_pb::Flag;
use nyala_proto::kudu::server::set_flag_response_pb::Code;
use nyala_proto::kudu::server::{
    DumpMemTrackersRequestPb, DumpMemTrackersResponsePb, GetFlagsRequestPb, GetFlagsResponsePb,
    GetStatusRequestPb, GetStatusResponsePb, ServerClockRequestPb, ServerClockResponsePb, SetFlagRequestPb,
    SetFlagResponsePb,
};

use super::ServerContext;
use super::flags::{self, FlagError, FlagState, Flags};
use super::logging;

/// Service over one server's [`ServerContext`] and its clock.
pub struct GenericService {
    common: ServerContext,
    clock: ServerClock,
}

impl GenericService {
    pub fn new(common: ServerContext, clock: ServerClock) -> GenericService {
        GenericService { common, clock }
    }
}

service_methods! {
    fn dispatch(service: GenericService, call) of METHODS;
    "GetStatus" { role: MethodRole::Client, audited: false, tracked: false, required: &[] } => {
        let GetStatusRequestPb {} = call.decode()?;
        let status = service.common.status.to_pb();
        Reply::message(&GetStatusResponsePb { status, error: None })
    },
    "ServerClock" { role: MethodRole::Client, audited: false, tracked: false, required: &[] } => {
        let ServerClockRequestPb {} = call.decode()?;
        // Takes a timestamp instead of peeking: no operation may get a timestamp at or below a published one.
        Reply::message(&ServerClockResponsePb { timestamp: Some(service.clock.now().0) })
    },
    "GetFlags" { role: MethodRole::Superuser, audited: true, tracked: false, required: &[] } =>
        Reply::message(&get_flags(&service.common.flags, &call.decode()?)),
    "SetFlag" { role: MethodRole::Superuser, audited: true, tracked: false, required: &[1, 2] } => {
        let response = set_flag(&service.common.flags, service.common.kind, &call.decode()?);
        if response.result() != Code::Success {
            call.note_failed(response.msg());
        }
        Reply::message(&response)
    },
    "DumpMemTrackers" { role: MethodRole::Superuser, audited: true, tracked: false, required: &[] } => {
        let DumpMemTrackersRequestPb {} = call.decode()?;
        let root_tracker = Some(to_pb(service.common.memory.usage()));
        Reply::message(&DumpMemTrackersResponsePb { root_tracker })
    },
}

impl Service for GenericService {
    fn name(&self) -> &'static str {
        "kudu.server.GenericService"
    }

    fn features(&self) -> &'static [u32] {
        &[]
    }

    fn methods(&self) -> &'static [MethodInfo] {
        METHODS
    }

    fn request_limits(&self, _method: &str) -> RequestLimits {
        RequestLimits::SMALL
    }

    fn subject(&self, method: &str, body: &Bytes) -> Option<String> {
        if method != "SetFlag" {
            return None;
        }
        let request = SetFlagRequestPb::decode(body.clone()).ok()?;
        Some(format!("{}={}", request.flag, request.value))
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        dispatch(self, call)
    }
}

/// Returns flags. Those asked for by name are returned with any value; without names, those that differ from their
/// default, or all. Tags filter the result.
fn get_flags(flags: &Flags, request: &GetFlagsRequestPb) -> GetFlagsResponsePb {
    let wanted = |current: &FlagState| {
        let named = request.flags.iter().any(|name| name.replace('-', "_") == current.spec.name);
        let tags = current.spec.all_tags();
        let tagged = request.tags.is_empty() || request.tags.iter().any(|tag| tags.contains(tag));
        let chosen = match request.flags.is_empty() {
            true => request.all_flags() || !current.is_default(),
            false => named,
        };
        chosen && tagged
    };
    let flag = |current: FlagState| Flag {
        name: Some(current.spec.name.to_string()),
        tags: current.spec.all_tags(),
        is_default_value: Some(current.is_default()),
        value: Some(current.value),
    };
    GetFlagsResponsePb { flags: flags.all().into_iter().filter(wanted).map(flag).collect() }
}

fn set_flag(flags: &Flags, kind: ServerKind, request: &SetFlagRequestPb) -> SetFlagResponsePb {
    let refused = |code: Code, why: &str| SetFlagResponsePb {
        result: code.into(),
        msg: Some(why.to_string()),
        old_value: None,
    };
    if let Some(why) = flags::spec(&request.flag).and_then(|spec| spec.refusal(kind)) {
        return refused(Code::NotSafe, &why);
    }
    // Flags store any text; the log must also understand it, and change before the flag says so.
    if request.flag.replace('-', "_") == "log_level"
        && let Err(error) = logging::change(&request.value)
    {
        return refused(Code::BadValue, &error.message);
    }
    match flags.change(&request.flag, &request.value, request.force()) {
        Ok(old_value) => {
            let (name, value) = (&request.flag, &request.value);
            // Texts may hold line ends.
            let (shown, old) = (value.escape_debug(), old_value.escape_debug());
            tracing::info!(flag = %name, value = %shown, %old, "flag changed");
            SetFlagResponsePb {
                result: Code::Success.into(),
                msg: Some(format!("{name} set to {value}{}", remark(name))),
                old_value: Some(old_value),
            }
        }
        Err(FlagError::NoSuchFlag(why)) => refused(Code::NoSuchFlag, &why),
        Err(FlagError::BadValue(why)) => refused(Code::BadValue, &why),
        Err(FlagError::NotSafe(why)) => refused(Code::NotSafe, &why),
    }
}

/// Returns the warning for a forced change.
fn remark(name: &str) -> &'static str {
    match flags::spec(name) {
        Some(spec) if !spec.has_effect() => "; it has no effect here",
        _ => "",
    }
}

fn to_pb(usage: MemUsage) -> MemTrackerPb {
    let limit = usage.limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
    MemTrackerPb {
        id: Some(usage.id),
        parent_id: usage.parent_id,
        limit: Some(limit),
        current_consumption: Some(usage.bytes as i64),
        peak_consumption: Some(usage.peak_bytes as i64),
        child_trackers: usage.children.into_iter().map(to_pb).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(response: GetFlagsResponsePb) -> Vec<String> {
        response.flags.into_iter().filter_map(|flag| flag.name).collect()
    }

    #[test]
    fn flags_are_selected_by_the_request() {
        let flags = Flags::new();
        flags.set("heartbeat_interval_ms", "5").unwrap();
        flags.set("never_fsync", "true").unwrap();
        let ask = |request| names(get_flags(&flags, &request));
        let none = GetFlagsRequestPb::default();
        assert_eq!(ask(none.clone()), ["heartbeat_interval_ms", "never_fsync"]);
        let tags = vec!["unsafe".to_string(), "experimental".to_string()];
        assert_eq!(ask(GetFlagsRequestPb { tags, ..none.clone() }), ["never_fsync"]);
        let named = vec!["time_source".to_string(), "builtin_ntp_servers".to_string()];
        let named = GetFlagsRequestPb { flags: named, ..none.clone() };
        assert_eq!(ask(named), ["builtin_ntp_servers", "time_source"]);
        let all = GetFlagsRequestPb { all_flags: Some(true), ..none };
        assert_eq!(ask(all).len(), flags.all().len());
    }

    #[test]
    fn a_flag_is_set_or_rejected_with_a_reason() {
        let flags = Flags::new();
        let set = |flag: &str, value: &str, force| {
            let (flag, value) = (flag.to_string(), value.to_string());
            let request = SetFlagRequestPb { flag, value, force: Some(force), run_consistency_check: None };
            let response = set_flag(&flags, ServerKind::TabletServer, &request);
            (response.result(), response.old_value)
        };
        assert_eq!(set("scanner_ttl_ms", "5", false), (Code::Success, Some("60000".to_string())));
        assert_eq!(set("scanner_ttl_ms", "x", false), (Code::BadValue, None));
        assert_eq!(set("fs_wal_dir", "x", false), (Code::NotSafe, None));
        // Forced or not: it would be shown without effect.
        assert_eq!(set("fs_wal_dir", "x", true), (Code::NotSafe, None));
        assert_eq!(flags.text("fs_wal_dir"), "");
        assert_eq!(set("follower_unavailable_considered_failed_sec", "7200", false).0, Code::Success);
        // Kudu's tools and tests may have flags shown that do nothing here.
        assert_eq!(set("never_fsync", "true", false), (Code::NotSafe, None));
        assert_eq!(set("never_fsync", "true", true), (Code::Success, Some("false".to_string())));
        assert_eq!(set("fs_wall_dir", "x", true), (Code::NoSuchFlag, None));
        // A rejected protection is not even shown as set.
        assert_eq!(set("tserver_enforce_access_control", "false", true), (Code::NotSafe, None));
        assert_eq!(set("rpc_encryption", "required", true), (Code::NotSafe, None));
        assert_eq!(set("encrypt_data_at_rest", "true", true), (Code::BadValue, None));
        assert_eq!(flags.text("rpc_encryption"), "optional");
        assert_eq!(set("trusted_subnets", "10.0.0.0/8", true), (Code::NotSafe, None));
    }

    #[test]
    fn a_flag_of_the_other_kind_of_server_is_rejected() {
        let flags = Flags::new();
        let set = |kind, flag: &str, force| {
            let (flag, value) = (flag.to_string(), "64".to_string());
            let request = SetFlagRequestPb { flag, value, force: Some(force), run_consistency_check: None };
            let response = set_flag(&flags, kind, &request);
            (response.result(), response.msg().to_string())
        };
        let (code, why) = set(ServerKind::Master, "flush-threshold-mb", true);
        assert_eq!(code, Code::NotSafe);
        expect_test::expect![[r#"flush_threshold_mb: not a flag of this kind of server (a flag of a tablet server, given to a master)"#]]
            .assert_eq(&why);
        assert_eq!(set(ServerKind::TabletServer, "default_num_replicas", false).0, Code::NotSafe);
        assert!(!flags.is_given("flush_threshold_mb"), "it is not shown as set");
        assert_eq!(set(ServerKind::TabletServer, "flush_threshold_mb", false).0, Code::Success);
    }
}
