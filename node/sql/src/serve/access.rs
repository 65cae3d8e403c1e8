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
use datafusion::execution::runtime_env::RuntimeEnv;
use nyala_client::security::SecretText;
use nyala_client::{Client, ClientConfig, SecurityConfig};
use nyala_common::env::Env;
use tokio::sync::Semaphore;

use super::super::error::{SqlError, state};
use super::super::executor::Executor;
use super::config::ServeConfig;
use super::memory;
use super::scram::Passwords;
use super::tickets::with_tickets;

/// Longest wait for the cluster's answer to a client's token.
const LOGIN_TIME: Duration = Duration::from_secs(5);
/// Largest number of passwords that are checked at a time. A check takes milliseconds of a processor, also for unknown
/// users.
const PASSWORD_CHECKS_MAX: usize = 4;
/// Largest number of tokens that the cluster verifies at a time for this program.
const TOKEN_CHECKS_MAX: usize = 32;

/// Cluster behind a server, and the user that clients act as.
pub enum ClusterAccess {
    /// All clients act as the user of this client.
    OneUser(Client),
    /// Each client acts as the subject of the JSON Web Token that it gives as its password. The token of `config` and
    /// tickets of this process are not used.
    EachUser { env: Env, config: Box<ClientConfig> },
}

impl ClusterAccess {
    fn env(&self) -> &Env {
        match self {
            ClusterAccess::OneUser(client) => client.env(),
            ClusterAccess::EachUser { env, .. } => env,
        }
    }
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
    server_aggregation: bool,
    statement_timeout: Option<Duration>,
    /// Memory of the statements of all clients.
    runtime: Arc<RuntimeEnv>,
    /// Checks of secrets that may begin.
    checks: Semaphore,
}

impl Access {
    pub(super) fn new(cluster: ClusterAccess, config: &ServeConfig) -> Result<Access, SqlError> {
        let passwords = config.passwords.clone();
        let cluster = match cluster {
            ClusterAccess::EachUser { env, config: client } => {
                if passwords.is_some() {
                    return Err(SqlError::new(
                        "clients give either passwords or JSON Web Tokens; choose one",
                    ));
                }
                each_user(&env, *client)?
            }
            one_user => one_user,
        };
        let checks_max = match &cluster {
            ClusterAccess::OneUser(_) => PASSWORD_CHECKS_MAX,
            ClusterAccess::EachUser { .. } => TOKEN_CHECKS_MAX,
        };
        // The other half is for what is not counted: messages, plans, rows on their way to clients.
        let half = || usize::try_from(cluster.env().memory.limit_bytes() / 2).unwrap_or(usize::MAX);
        let runtime = memory::runtime(config.memory_bytes_max.unwrap_or_else(half))?;
        Ok(Access {
            cluster,
            passwords,
            fault_tolerant: config.fault_tolerant,
            server_aggregation: config.server_aggregation,
            statement_timeout: config.statement_timeout,
            runtime,
            checks: Semaphore::new(checks_max),
        })
    }

    pub(super) fn env(&self) -> &Env {
        self.cluster.env()
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
        let mut executor = Executor::new(client, self.runtime.clone());
        executor.fault_tolerant = self.fault_tolerant;
        executor.plan.server_aggregation = self.server_aggregation;
        executor.files = false;
        executor.statement_timeout = self.statement_timeout;
        executor
    }

    /// Checks the secret of a user, once few others are checked. Returns the executor with the user's rights.
    pub(super) async fn login(&self, user: &str, secret: &str) -> Result<Executor, SqlError> {
        let closed = |_| SqlError::with_state(state::INTERNAL, "the server checks no secrets any more");
        let _check = self.checks.acquire().await.map_err(closed)?;
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

/// Returns access by which clients present their tokens alone. A cluster that takes no tokens would get a ticket of
/// this process instead, and a client with a token of its own making would have this program's rights.
fn each_user(env: &Env, mut config: ClientConfig) -> Result<ClusterAccess, SqlError> {
    if config.security.ca_certificates.is_none() {
        let what =
            "JSON Web Tokens of clients would be sent to servers that are not verified; give --ca-cert";
        return Err(SqlError::new(what));
    }
    config.security.sasl_protocol_name = None;
    Ok(ClusterAccess::EachUser { env: with_tickets(env, None), config: Box::new(config) })
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
    use futures_util::FutureExt;
    use nyala_common::env::kerberos_double::KerberosDouble;
    use nyala_common::env::os::{OsEnv, OsOptions};

    use super::*;

    /// Returns access for clients with tokens, of a process with a ticket.
    fn access_by_tokens() -> Access {
        let env = OsEnv::new(&OsOptions::default()).expect("this machine");
        let ticket = KerberosDouble { principal: Some("sql@R".to_string()) };
        let env = with_tickets(&env, Some(Arc::new(ticket)));
        let mut config = ClientConfig::new(vec!["127.0.0.1:7051".to_string()]);
        config.security.ca_certificates = Some(Vec::new());
        config.security.sasl_protocol_name = Some("kudu".to_string());
        let cluster = ClusterAccess::EachUser { env, config: Box::new(config) };
        Access::new(cluster, &ServeConfig::default()).expect("a CA is given")
    }

    #[tokio::test]
    async fn secrets_wait_until_few_others_are_checked() {
        let access = access_by_tokens();
        let others = access.checks.acquire_many(TOKEN_CHECKS_MAX as u32).await.expect("all checks");
        assert!(access.login("ann", "no token").now_or_never().is_none(), "a check more than allowed");
        drop(others);
        let refused = access.login("ann", "no token").await.err().expect("not a token");
        assert_eq!(refused.sql_state(), state::BAD_PASSWORD);
    }

    #[test]
    fn clients_with_tokens_never_present_this_process_ticket() {
        let access = access_by_tokens();
        let ClusterAccess::EachUser { env, config } = &access.cluster else { panic!("its kind") };
        assert!(env.net.kerberos().is_none(), "a token that the cluster does not take would be no obstacle");
        assert_eq!(config.security.sasl_protocol_name, None);
    }

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
