//! ConfigInLog: who comes back goes by the newest configuration that its log holds, committed or not (Raft §6).
//!
//! What a replica knew as committed may be stored beside its log later than in it; so it is in the log that a crash
//! leaves it, and nobody else says so before the next change.

use engine::note::raft::{Action, DataState};

use super::{Event, Invariant, Model};

/// See the module.
#[derive(Debug, Default)]
pub struct ConfigInLog;

impl Invariant for ConfigInLog {
    fn name(&self) -> &'static str {
        "ConfigInLog"
    }

    fn see(&mut self, event: &Event, after: &Model) -> Result<(), String> {
        let at = event.at;
        let is_back = matches!(event.note.action, Action::Restart { .. });
        if !is_back || event.note.post.data != DataState::Ready || after.excused.contains(&at) {
            return Ok(());
        }
        let (Some(told), Some(replica)) = (after.opened_with.get(&at), after.replicas.get(&at)) else {
            return Ok(());
        };
        let held = after.configs.keys().filter(|op| replica.log.has(**op)).map(|op| op.index).max();
        match held {
            Some(held) if *told < held => Err(format!(
                "{at} came back and goes by the configuration of index {told}, while its log holds that of {held}"
            )),
            _ => Ok(()),
        }
    }
}
