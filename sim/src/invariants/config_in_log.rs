//! ConfigInLog: a restarted replica uses the newest configuration in its log, committed or not (Raft §5.4, §6).
//!
//! The configuration known as committed may be stored in the consensus metadata later than in the log. After a crash
//! only the log has it, and no message repeats it before the next change.

use engine::note::raft::{NotedDataState, RaftAction};

use super::{Invariant, Model, ReplicaEvent};

/// The invariant of this module.
#[derive(Debug, Default)]
pub struct ConfigInLog;

impl Invariant for ConfigInLog {
    fn name(&self) -> &'static str {
        "ConfigInLog"
    }

    fn check_after(&mut self, event: &ReplicaEvent, after: &Model) -> Result<(), String> {
        let at = event.at;
        let is_back = matches!(event.note.action, RaftAction::Restart { .. });
        if !is_back || event.note.post.data != NotedDataState::Ready || after.excused.contains(&at) {
            return Ok(());
        }
        let (Some(opened_config), Some(replica)) = (after.opened_with.get(&at), after.replicas.get(&at))
        else {
            return Ok(());
        };
        let newest = after.configs.keys().filter(|op| replica.log.has(**op)).map(|op| op.index).max();
        match newest {
            Some(newest) if *opened_config < newest => Err(format!(
                "{at} restarted with the configuration of index {opened_config}, while its log holds that of {newest}"
            )),
            _ => Ok(()),
        }
    }
}
