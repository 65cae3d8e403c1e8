//! The policy in force, and its replacement when the file changes.
//!
//! A file that is read while it is written may lack rules at its end. Rules only give rights, so this takes some away
//! until the next read.

use engine::sync::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};

use super::policy::AccessPolicy;
use crate::server::health::{CheckResult, HealthCheck};
use nyala_common::env::Env;

/// A policy file, and the policy that was read from it last.
#[derive(Debug)]
pub(crate) struct PolicyFile {
    path: String,
    interval: Duration,
    state: Mutex<PolicyState>,
}

#[derive(Debug)]
struct PolicyState {
    policy: Arc<AccessPolicy>,
    /// Reason that the file's present content is not in force.
    fault: Option<String>,
}

impl PolicyFile {
    /// Reads the file at the start of a server. It is read again at this interval.
    pub(crate) fn open(env: &Env, path: &str, interval: Duration) -> Result<Arc<PolicyFile>> {
        let policy = Arc::new(AccessPolicy::parse(&read(env, path)?, path)?);
        let state = Mutex::new(PolicyState { policy, fault: None });
        Ok(Arc::new(PolicyFile { path: path.to_string(), interval, state }))
    }

    pub(crate) fn current(&self) -> Arc<AccessPolicy> {
        self.state().policy.clone()
    }

    /// Reads the file, and puts its policy in force. After an error the policy that was read last stays in force.
    pub(crate) async fn reload(&self, env: &Env) -> Result<()> {
        let content = env.run(|| read(env, &self.path)).await;
        let parsed = content.and_then(|content| AccessPolicy::parse(&content, &self.path));
        let mut state = self.state();
        match parsed {
            Ok(policy) => {
                if *state.policy != policy || state.fault.is_some() {
                    tracing::info!(path = %self.path, "the policy of the file is in force");
                }
                (state.policy, state.fault) = (Arc::new(policy), None);
                Ok(())
            }
            Err(error) => {
                if state.fault.as_ref() != Some(&error.message) {
                    tracing::error!(%error, "the policy file cannot be used; the policy read before stays in force");
                }
                state.fault = Some(error.message.clone());
                Err(error)
            }
        }
    }

    /// Reads the file again and again.
    pub(crate) async fn watch(self: Arc<Self>, env: Env) {
        loop {
            env.sleep(self.interval).await;
            // The fault is logged, and shown by the check.
            let _: Result<()> = self.reload(&env).await;
        }
    }

    /// Returns the check that the policy in force is that of the file.
    pub(crate) fn check(&self) -> HealthCheck {
        let result = match &self.state().fault {
            None => CheckResult::Ok(format!("the policy of {} is in force", self.path)),
            Some(fault) => CheckResult::Warning(format!("an earlier policy is in force, because {fault}")),
        };
        HealthCheck::new("policy", result)
    }

    fn state(&self) -> MutexGuard<'_, PolicyState> {
        self.state.lock()
    }
}

fn read(env: &Env, path: &str) -> Result<Vec<u8>> {
    let content = env.disks.read_file(path);
    content.map_err(|error| Error::io(format_args!("authz_policy_file: read {path}"), &error))
}
