//! Startup of a connection: limits, authentication, parameters of the server.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use futures_util::Sink;
use pgwire::api::ClientInfo;
use pgwire::api::auth::mechanism::{AuthMechanism, AuthState};
use pgwire::api::auth::{
    AuthDriver, AuthOutcome, DefaultServerParameterProvider, StartupHandler, protocol_negotiation,
    save_startup_parameters_to_metadata,
};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::startup::PasswordMessageFamily;
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage};

use super::super::executor::Executor;
use super::access::Proof;
use super::cancel::{Cancellation, Registration};
use super::places::ConnectionPlace;
use super::scram::ScramExchange;
use super::settings::ConnectionSettings;
use super::shared::{Shared, fatal};
use super::token::TokenExchange;

/// Version of Postgres whose protocol and texts are spoken.
const SERVER_VERSION: &str = concat!("16.0 (nyala ", env!("CARGO_PKG_VERSION"), ")");

/// Startup of one connection.
pub(super) struct Startup {
    shared: Arc<Shared>,
    driver: AuthDriver<DefaultServerParameterProvider>,
    cancellation: Arc<Cancellation>,
    settings: Arc<ConnectionSettings>,
    registration: Mutex<Option<Registration>>,
    /// Set when the client's rights are known.
    executor: Arc<OnceLock<Executor>>,
    place: Arc<ConnectionPlace>,
    /// True if the connection is encrypted or need not be. Otherwise its client learns why after its startup message.
    is_acceptable: bool,
}

impl Startup {
    pub(super) fn new(
        shared: &Arc<Shared>,
        cancellation: Arc<Cancellation>,
        settings: Arc<ConnectionSettings>,
        executor: Arc<OnceLock<Executor>>,
        place: Arc<ConnectionPlace>,
        is_acceptable: bool,
    ) -> Startup {
        let mut parameters = DefaultServerParameterProvider::default();
        parameters.server_version = SERVER_VERSION.to_string();
        parameters.is_superuser = false;
        parameters.time_zone = "UTC".to_string();
        Startup {
            shared: shared.clone(),
            driver: AuthDriver::new(parameters).with_pid_secret_key_generator(shared.processes.clone()),
            cancellation,
            settings,
            registration: Mutex::default(),
            executor,
            place,
            is_acceptable,
        }
    }

    fn mechanism(&self) -> Box<dyn AuthMechanism> {
        match self.shared.access.proof() {
            Proof::None => Box::new(Trust),
            Proof::Password(passwords) => Box::new(ScramExchange::new(&self.shared.env, passwords)),
            Proof::Token => Box::new(TokenExchange::new(&self.shared, self.executor.clone())),
        }
    }

    fn check(&self) -> PgWireResult<()> {
        if self.place.is_full() {
            return Err(self.too_many());
        }
        if !self.is_acceptable {
            let what = "this server takes encrypted connections only; connect with sslmode=require";
            return Err(fatal("28000", what.to_string()));
        }
        Ok(())
    }

    fn too_many(&self) -> PgWireError {
        fatal("53300", self.place.refusal())
    }

    async fn proceed<C>(&self, client: &mut C, outcome: AuthOutcome) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let AuthOutcome::Authenticated { final_message, .. } = outcome else { return Ok(()) };
        if !self.place.prove() {
            return Err(self.too_many());
        }
        self.driver.complete_authentication(client, final_message).await?;
        let (process, key) = client.pid_and_secret_key();
        let registration = self.shared.cancels.register(process, key, self.cancellation.clone());
        *self.registration.lock().unwrap_or_else(|error| error.into_inner()) = Some(registration);
        Ok(())
    }
}

#[async_trait]
impl StartupHandler for Startup {
    async fn on_startup<C>(&self, client: &mut C, message: PgWireFrontendMessage) -> PgWireResult<()>
    where
        C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        match message {
            PgWireFrontendMessage::Startup(startup) => {
                self.check()?;
                protocol_negotiation(client, &startup).await?;
                save_startup_parameters_to_metadata(client, &startup);
                let parameter = |name: &str| startup.parameters.get(name).cloned();
                let applied = self.settings.apply_startup(parameter);
                applied.map_err(|error| fatal(error.sql_state(), error.to_string()))?;
                let outcome = self.driver.begin_authentication(client, self.mechanism()).await?;
                self.proceed(client, outcome).await
            }
            PgWireFrontendMessage::PasswordMessageFamily(message) => {
                let outcome = self.driver.advance_authentication(client, message).await?;
                self.proceed(client, outcome).await
            }
            _ => Err(fatal("08P01", "expected a startup message".to_string())),
        }
    }
}

/// Mechanism without a password, for clients of this machine.
struct Trust;

#[async_trait]
impl AuthMechanism for Trust {
    async fn begin(&mut self, _: &(dyn ClientInfo + Send + Sync)) -> PgWireResult<AuthState> {
        Ok(AuthState::Ok { final_message: None, identity: None })
    }

    async fn next(
        &mut self,
        _: &(dyn ClientInfo + Send + Sync),
        _: PasswordMessageFamily,
    ) -> PgWireResult<AuthState> {
        Err(PgWireError::NoAuthenticationInProgress)
    }
}
