//! A JSON Web Token as the password: the cluster verifies it, and the client acts as its subject.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use pgwire::api::auth::mechanism::{AuthMechanism, AuthState};
use pgwire::api::{ClientInfo, METADATA_USER};
use pgwire::error::PgWireResult;
use pgwire::messages::startup::{Authentication, PasswordMessageFamily};

use super::super::executor::Executor;
use super::shared::{Shared, fatal};

/// Exchange of one connection.
pub(super) struct TokenExchange {
    shared: Arc<Shared>,
    /// Set when the cluster has accepted the token.
    executor: Arc<OnceLock<Executor>>,
}

impl TokenExchange {
    pub(super) fn new(shared: &Arc<Shared>, executor: Arc<OnceLock<Executor>>) -> TokenExchange {
        TokenExchange { shared: shared.clone(), executor }
    }
}

#[async_trait]
impl AuthMechanism for TokenExchange {
    async fn begin(&mut self, _: &(dyn ClientInfo + Send + Sync)) -> PgWireResult<AuthState> {
        Ok(AuthState::InProgress(Authentication::CleartextPassword))
    }

    async fn next(
        &mut self,
        client: &(dyn ClientInfo + Send + Sync),
        message: PasswordMessageFamily,
    ) -> PgWireResult<AuthState> {
        let user = client.metadata().get(METADATA_USER).cloned().unwrap_or_default();
        let token = message.into_password()?.password;
        let login = self.shared.access.login(&user, &token).await;
        let executor = login.map_err(|error| fatal(error.sql_state(), error.to_string()))?;
        // A connection authenticates once.
        let _ = self.executor.set(executor);
        Ok(AuthState::Ok { final_message: None, identity: None })
    }
}
