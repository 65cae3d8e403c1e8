//! Maintenance mode of servers, of which at most one is in it.

use engine::ids::Uuid;
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::master::t_server_state_change_pb::StateChange;
use nyala_proto::kudu::master::{
    ChangeTServerStateRequestPb, ChangeTServerStateResponsePb, TServerStateChangePb,
};

use super::script::{Answer, Script};
use super::settings::{SERVERS, TRUSTED};

impl Script {
    /// Puts a server into maintenance mode, or takes the one that is or may be in it out of it.
    pub(super) async fn change_maintenance(&mut self) -> Result<(), String> {
        let server = self.random.below(SERVERS as u64) as usize;
        let (kept, id) = {
            let state = self.state.lock();
            let kept = state.unsure.first().or(state.maintenance.keys().next()).copied();
            (kept, state.servers[server].id())
        };
        match kept {
            Some(kept) => self.set_maintenance(kept, false).await.map(drop),
            None => self.set_maintenance(id, true).await.map(drop),
        }
    }

    /// Changes the mode of a server; returns true if that is acknowledged.
    pub(super) async fn set_maintenance(&mut self, id: Uuid, enter: bool) -> Result<bool, String> {
        let was = self.begin_change(id);
        let kind = if enter { StateChange::EnterMaintenanceMode } else { StateChange::ExitMaintenanceMode };
        let change = TServerStateChangePb { uuid: Some(id.to_string()), change: Some(kind as i32) };
        let request = ChangeTServerStateRequestPb { change: Some(change), handle_missing_tserver: None };
        let answer: Answer<ChangeTServerStateResponsePb> =
            self.ask(TRUSTED, "ChangeTServerState", &request).await;
        self.note(format!("maintenance mode of {id}, {enter}: {answer:?}"));
        let mut state = self.state.lock();
        let now = self.links.now();
        match answer {
            Answer::Done { .. } => {
                state.unsure.remove(&id);
                if enter {
                    state.maintenance.insert(id, now);
                }
                Ok(true)
            }
            Answer::Refused { master, error } => {
                let is_known = state.masters[master].alive(now).any(|alive| alive == id);
                state.unsure.remove(&id);
                match error.status.code == ErrorCode::NotFound as i32 && !is_known && enter {
                    true => Ok(false),
                    false => Err(format!("maintenance mode of {id}, {enter}: {error:?}")),
                }
            }
            Answer::NotNow => {
                if !was {
                    state.unsure.remove(&id);
                }
                Ok(false)
            }
            Answer::Unknown => Ok(false),
        }
    }

    /// Makes a server's mode unsure; returns true if it was not known before either, or is to end.
    fn begin_change(&self, id: Uuid) -> bool {
        let mut state = self.state.lock();
        let was_kept = state.maintenance.remove(&id).is_some();
        state.maintenance_changed = self.links.now();
        !state.unsure.insert(id) || was_kept
    }
}
