//! Access: who may connect, how clients prove who they are, and whose rights they have in the cluster.
//!
//! ```text
//! one user:   password ── file of passwords ──► the client of this program, whose rights count for all
//! each user:  JSON Web Token as the password ──► a client of the cluster of its own, which verifies the token
//! ```

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64_URL;
use nyala_client::security::SecretText;
use nyala_client::{Client, ClientConfig, SecurityConfig};
use nyala_common::env::Env;

use super::super::error::{SqlError, state};
use super::super::executor::Executor;
use super::scram::Passwords;

/// Longest wait for the cluster's answer to a client's token.
const LOGIN_TIME: Duration = Duration::from_secs(5);

/// Cluster behind a server, and the user that clients act as.
pub enum ClusterAccess {
    /// All clients act as the user of this client.
    OneUser(Client),
    /// Each client acts as the subject of the JSON Web Token that it gives as its password. The token of `config`, if
    /// any, is not used.
    EachUser { env: Env, config: Box<ClientConfig> },
}

/// Proof that a client gives.
pub(super) enum Proof {
    /// None: only clients of this machine can connect.
    None,
    /// The password of a file.
    Password(Arc<Passwords>),
    /// A JSON Web Token of the cluster's.
    Token,
}

/// Access of the clients of one server.
pub(super) struct Access {
    cluster: ClusterAccess,
    passwords: Option<Arc<Passwords>>,
    fault_tolerant: bool,
}

impl Access {
    pub(super) fn new(
        cluster: ClusterAccess,
        passwords: Option<Arc<Passwords>>,
        fault_tolerant: bool,
    ) -> Result<Access, SqlError> {
        if let ClusterAccess::EachUser { config, .. } = &cluster {
            if passwords.is_some() {
                return Err(SqlError::new("clients give either passwords or JSON Web Tokens; choose one"));
            }
            if config.security.ca_certificates.is_none() {
                let what = "JSON Web Tokens of clients would be sent to servers that are not verified; give --ca-cert";
                return Err(SqlError::new(what));
            }
        }
        Ok(Access { cluster, passwords, fault_tolerant })
    }

    pub(super) fn env(&self) -> &Env {
        match &self.cluster {
            ClusterAccess::OneUser(client) => client.env(),
            ClusterAccess::EachUser { env, .. } => env,
        }
    }

    pub(super) fn proof(&self) -> Proof {
        match (&self.cluster, &self.passwords) {
            (ClusterAccess::EachUser { .. }, _) => Proof::Token,
            (ClusterAccess::OneUser(_), Some(passwords)) => Proof::Password(passwords.clone()),
            (ClusterAccess::OneUser(_), None) => Proof::None,
        }
    }

    /// Returns the executor that all clients share; `None` if each has one of its own.
    pub(super) fn common_executor(&self) -> Option<Executor> {
        match &self.cluster {
            ClusterAccess::OneUser(client) => Some(self.executor(client.clone())),
            ClusterAccess::EachUser { .. } => None,
        }
    }

    fn executor(&self, client: Client) -> Executor {
        let mut executor = Executor::new(client);
        executor.fault_tolerant = self.fault_tolerant;
        executor.files = false;
        executor
    }

    /// Checks the secret of a user. Returns the executor with the user's rights.
    pub(super) async fn login(&self, user: &str, secret: &str) -> Result<Executor, SqlError> {
        match &self.cluster {
            ClusterAccess::OneUser(client) => {
                let passwords = self.passwords.clone();
                let is_right = match passwords {
                    None => true,
                    Some(passwords) => client.env().run(|| passwords.verify(user, secret)).await,
                };
                let wrong =
                    || SqlError::with_state(state::BAD_PASSWORD, format!("user {user}: wrong password"));
                is_right.then(|| self.executor(client.clone())).ok_or_else(wrong)
            }
            ClusterAccess::EachUser { env, config } => {
                self.connect(env, config, user, secret).await.map(|client| self.executor(client))
            }
        }
    }

    /// Connects to the cluster with a client's token, which the cluster verifies.
    async fn connect(
        &self,
        env: &Env,
        config: &ClientConfig,
        user: &str,
        token: &str,
    ) -> Result<Client, SqlError> {
        let refused =
            |reason: String| SqlError::with_state(state::BAD_PASSWORD, format!("user {user}: {reason}"));
        let subject = subject(token).ok_or_else(|| {
            refused("the password must be a JSON Web Token of the cluster with a subject".to_string())
        })?;
        if subject != user {
            return Err(refused(format!(
                "the JSON Web Token is that of {subject}; give its subject as the user"
            )));
        }
        let jwt = Some(SecretText::new(token.to_string()));
        let config = ClientConfig {
            user: user.to_string(),
            connect_timeout: LOGIN_TIME,
            security: SecurityConfig { jwt, ..config.security.clone() },
            ..config.clone()
        };
        Client::connect(env.clone(), config).await.map_err(|error| refused(error.to_string()))
    }
}

/// Returns the subject that a JSON Web Token claims. Only the cluster can verify it.
fn subject(token: &str) -> Option<String> {
    let mut parts = token.trim().split('.');
    let (_, claims, _, None) = (parts.next()?, parts.next()?, parts.next()?, parts.next()) else {
        return None;
    };
    let claims: serde_json::Value = serde_json::from_slice(&BASE64_URL.decode(claims).ok()?).ok()?;
    claims.get("sub")?.as_str().map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subject_of_a_token_is_found() {
        let token = |claims: &str| format!("e30.{}.c2ln", BASE64_URL.encode(claims));
        assert_eq!(subject(&token(r#"{"sub":"ann","exp":1}"#)).as_deref(), Some("ann"));
        for claims in [r#"{"name":"ann"}"#, r#"{"sub":7}"#, "no object"] {
            assert_eq!(subject(&token(claims)), None, "{claims}");
        }
        for text in ["", "secret", "a.b", "a.b.c.d"] {
            assert_eq!(subject(text), None, "{text}");
        }
    }
}
