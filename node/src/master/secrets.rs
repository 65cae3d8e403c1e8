//! Secrets of the cluster on a master: the CA and the token keys. Made and used by the leader, read by the others.
//!
//! ```text
//!   leader:    Catalog (durable rows) ──▶ what is due? ── ChangeSecrets ──▶ durable ──▶ in use: signs
//!   any other: rows of its own replica of the system tablet ──▶ own certificate, public token keys
//! ```
//!
//! - Invariant: a key is used only after its row is durable, so that any later leader has it.
//! - Invariant: no secret leaves a master. Tablet servers and clients get certificates, public keys and tokens.
//! - A master that does not lead gives out neither certificates nor tokens, but accepts tokens.

use engine::sync::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;

use engine::catalog::{
    AuthorityRecord, CatalogCommand, ClusterSecrets, SecretsChange, SystemRecord, SystemRowKey,
    TokenKeyRecord,
};
use engine::error::{Error, Result};
use nyala_proto::kudu::security::{SignedTokenPb, TablePrivilegePb, TokenSigningPublicKeyPb};
use zeroize::Zeroizing;

use super::catalog_loop::CatalogHandle;
use super::system_tablet;
use crate::hosting::replica::ReplicaHandle;
use crate::server::security::{SecuritySettings, ServerIdentity};
use nyala_common::env::Env;
use nyala_common::security::pki::{CertAuthority, CertRequest, CertValidity, EcdsaKey};
use nyala_common::security::tls::{draw_key, draw_serial};
use nyala_common::security::token::{KeyLifetime, RotationPlan, TokenKey, TokenSigner, seconds};

/// Name under which the leader changes the secrets.
const CALLER: &str = "master";
/// Interval between checks of what is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest interval at which another master than the leader reads the token keys.
const READ_INTERVAL_MAX: Duration = Duration::from_secs(30);

/// The CA and the token keys, usable because their rows are durable.
struct ActiveSecrets {
    authority: CertAuthority,
    signer: TokenSigner,
}

/// Secrets of a master. Empty unless it leads.
pub(super) struct MasterSecrets {
    env: Env,
    identity: Arc<ServerIdentity>,
    active: Mutex<Option<Arc<ActiveSecrets>>>,
}

impl MasterSecrets {
    pub(super) fn new(env: &Env, identity: Arc<ServerIdentity>) -> Arc<MasterSecrets> {
        Arc::new(MasterSecrets { env: env.clone(), identity, active: Mutex::default() })
    }

    /// Makes what is due, and takes the secrets into use. Returns when all is durable.
    pub(super) async fn refresh(&self, catalog: &CatalogHandle) -> Result<()> {
        let Some(settings) = self.identity.settings() else { return Ok(()) };
        let stored = catalog.read(|catalog, _| catalog.secrets().clone()).await?;
        let change = self.due(settings, &stored)?;
        let stored = match change == SecretsChange::default() {
            true => stored,
            false => {
                self.store(catalog, change).await?;
                catalog.read(|catalog, _| catalog.secrets().clone()).await?
            }
        };
        let active = ActiveSecrets {
            authority: authority(&stored)?
                .ok_or_else(|| Error::corrupt("the catalog has no certification authority"))?,
            signer: TokenSigner::new(settings.tokens.clone(), token_keys(&stored)),
        };
        self.adopt(settings, &stored)?;
        *self.lock() = Some(Arc::new(active));
        Ok(())
    }

    /// Keeps the secrets up to date while this master leads.
    pub(super) async fn run_as_leader(&self, catalog: &CatalogHandle) {
        if self.identity.settings().is_none() {
            return std::future::pending().await;
        }
        loop {
            self.env.sleep(CHECK_INTERVAL).await;
            if let Err(error) = self.refresh(catalog).await {
                tracing::warn!(%error, "the cluster's token keys could not be brought up to date; retrying");
            }
        }
    }

    /// Takes the secrets out of use: another master leads.
    pub(super) fn end_leadership(&self) {
        *self.lock() = None;
    }

    /// Reads the secrets from the own replica of the system tablet while this master runs, leading or not.
    pub(super) async fn run_as_reader(&self, replica: ReplicaHandle) {
        let Some(settings) = self.identity.settings() else { return };
        let interval = (settings.tokens.rotation / 2).clamp(CHECK_INTERVAL, READ_INTERVAL_MAX);
        loop {
            let tablet = replica.tablet().clone();
            let read = self.env.run(|| read(&tablet)).await.and_then(|stored| self.adopt(settings, &stored));
            if let Err(error) = read {
                tracing::warn!(%error, "the cluster's certificates and token keys cannot be read; retrying");
            }
            let ready = self.identity.request().is_none() && self.identity.keyring.latest() >= 0;
            self.env.sleep(if ready { interval } else { CHECK_INTERVAL }).await;
        }
    }

    /// Signs the certificate request of the server that calls as `user`.
    pub(super) fn sign_request(&self, der: &[u8], user: &str) -> Result<Vec<u8>> {
        let request = CertRequest::parse(der)?;
        request.check_user(user)?;
        let (Some(settings), Some(active)) = (self.identity.settings(), self.active()) else {
            return Err(Error::not_ready("the certification authority is not loaded"));
        };
        self.sign(&active.authority, &request, settings)
    }

    /// Returns the public token keys with numbers above `above`; none if this master does not lead.
    pub(super) fn public_keys(&self, above: i64) -> Vec<TokenSigningPublicKeyPb> {
        self.active().as_ref().map(|active| active.signer.public_keys(above)).unwrap_or_default()
    }

    /// Signs that a connection's user is `user`. `None` if this master does not lead.
    pub(super) fn authn_token(&self, user: &str) -> Option<SignedTokenPb> {
        self.active()?.signer.authn(user, self.now_s())
    }

    /// Signs the privileges of `user` on one table. `None` if this master does not lead.
    pub(super) fn authz_token(&self, user: &str, privilege: TablePrivilegePb) -> Option<SignedTokenPb> {
        self.active()?.signer.authz(user, privilege, self.now_s())
    }

    fn now_s(&self) -> i64 {
        seconds(self.env.now().wall)
    }

    fn active(&self) -> Option<Arc<ActiveSecrets>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<ActiveSecrets>>> {
        self.active.lock()
    }

    /// Returns the change that is due: a CA for a cluster without one, a new token key, expired keys to remove.
    fn due(&self, settings: &SecuritySettings, stored: &ClusterSecrets) -> Result<SecretsChange> {
        let mut change = SecretsChange::default();
        if stored.authority.is_none() {
            let validity = CertValidity { now_s: self.now_s(), lasts: settings.validity.authority };
            let authority = CertAuthority::create(draw_key(&self.env), draw_serial(&self.env), validity)?;
            let (secret, certificate) = (authority.secret().to_vec(), authority.certificate_der().to_vec());
            change.authority = Some(AuthorityRecord { secret, certificate });
        }
        let signer = TokenSigner::new(settings.tokens.clone(), token_keys(stored));
        let RotationPlan { create, remove } = signer.plan(self.now_s());
        change.new_token_key = create.map(|number| {
            let mut seed = Zeroizing::new([0; 32]);
            self.env.rng.fill_secret(&mut *seed);
            let KeyLifetime { created_s, expires_s } = settings.tokens.lifetime(self.now_s());
            (number, TokenKeyRecord { seed: *seed, created_s, expires_s })
        });
        change.removed_token_keys = remove;
        Ok(change)
    }

    async fn store(&self, catalog: &CatalogHandle, change: SecretsChange) -> Result<()> {
        let (created, removed) =
            (change.new_token_key.as_ref().map(|(number, _)| *number), &change.removed_token_keys);
        tracing::info!(
            authority = change.authority.is_some(),
            ?created,
            ?removed,
            "changing the cluster's keys"
        );
        let command = CatalogCommand::ChangeSecrets(Box::new(change));
        let stored = catalog.command(CALLER, command).await?;
        stored.map(|_| ()).map_err(|error| Error::aborted(error.to_string()))
    }

    /// Trusts the CA, gets an own certificate if there is none, and takes the public token keys.
    fn adopt(&self, settings: &SecuritySettings, stored: &ClusterSecrets) -> Result<()> {
        let keys: Vec<_> = token_keys(stored).iter().map(TokenKey::public).collect();
        self.identity.import_keys(&keys, self.env.now().wall);
        let Some(authority) = authority(stored)? else { return Ok(()) };
        self.identity.trust(authority.certificate_der().to_vec())?;
        let Some(request) = self.identity.request() else { return Ok(()) };
        let request = CertRequest::parse(&request)?;
        self.identity.certify(self.sign(&authority, &request, settings)?)
    }

    fn sign(
        &self,
        authority: &CertAuthority,
        request: &CertRequest,
        settings: &SecuritySettings,
    ) -> Result<Vec<u8>> {
        let validity = CertValidity { now_s: self.now_s(), lasts: settings.validity.server };
        authority.sign(request, draw_serial(&self.env), validity)
    }
}

/// Returns the stored CA, if there is one.
fn authority(stored: &ClusterSecrets) -> Result<Option<CertAuthority>> {
    let Some(AuthorityRecord { secret, certificate }) = &stored.authority else { return Ok(None) };
    let secret: Option<[u8; 32]> = secret.as_slice().try_into().ok();
    let key = secret.map(Zeroizing::new).and_then(|secret| EcdsaKey::from_secret(&secret));
    let key = key.ok_or_else(|| Error::corrupt("catalog: the certification authority's key is damaged"))?;
    Ok(Some(CertAuthority::from_parts(key, certificate.clone())))
}

fn token_keys(stored: &ClusterSecrets) -> Vec<TokenKey> {
    let key = |(number, record): (&i64, &TokenKeyRecord)| {
        let lifetime = KeyLifetime { created_s: record.created_s, expires_s: record.expires_s };
        TokenKey::from_seed(*number, &record.seed, lifetime)
    };
    stored.token_keys.iter().map(key).collect()
}

/// Reads the secrets' rows of a replica of the system tablet.
fn read(tablet: &engine::tablet::Tablet) -> Result<ClusterSecrets> {
    let mut secrets = ClusterSecrets::default();
    for (key, metadata) in system_tablet::read_secrets(tablet)? {
        match key {
            SystemRowKey::Authority => secrets.authority = Some(AuthorityRecord::unseal(&metadata)?),
            SystemRowKey::TokenKey(number) => {
                secrets.token_keys.insert(number, TokenKeyRecord::unseal(&metadata)?);
            }
            _ => {}
        }
    }
    Ok(secrets)
}
