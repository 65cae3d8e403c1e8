//! Identity of a running server: certificate, trusted CAs, token keys.

use engine::sync::{Mutex, MutexGuard};
use std::sync::Arc;

use engine::error::Result;
use engine::time::WallTime;

use super::settings::{JwtKeys, SecuritySettings};
use nyala_common::env::kerberos::{ClientKerberos, KerberosCredentials, ServerKerberos};
use nyala_common::env::{Env, TaskHandle};
use nyala_common::security::acl::AccessLists;
use nyala_common::security::pki::EcdsaKey;
use nyala_common::security::tls::{OwnCertificate, draw_key};
use nyala_common::security::token::TokenKeyring;
use nyala_common::security::{
    CertificateOrigin, ClientSecurity, ClientSecurityOptions, JwtTokenVerifier, PrivateKey, RpcCaller,
    ServerSecurity, TlsCredentials,
};
use nyala_proto::kudu::security::TokenSigningPublicKeyPb;

/// Identity of a server, shared by its RPC server and by all that calls other servers.
pub struct ServerIdentity {
    settings: Option<SecuritySettings>,
    tls: Option<Arc<TlsCredentials>>,
    client: Option<Arc<ClientSecurity>>,
    /// Key of the own certificate, and the request for one of the CA until that has come.
    request: Mutex<Option<PendingRequest>>,
    pub keyring: Arc<TokenKeyring>,
    access: Arc<AccessLists>,
    /// Task that fetches the keys of JSON Web Tokens.
    fetching: Option<Box<dyn TaskHandle>>,
}

impl Drop for ServerIdentity {
    fn drop(&mut self) {
        self.fetching.iter().for_each(|task| task.abort());
    }
}

/// A request for a certificate that is not answered yet.
#[derive(Clone)]
struct PendingRequest {
    key: PrivateKey,
    der: Vec<u8>,
}

impl ServerIdentity {
    /// Creates the identity of a server on `host`. Without settings it has neither TLS nor access lists.
    pub fn new(env: &Env, settings: Option<&SecuritySettings>, host: &str) -> Result<Arc<ServerIdentity>> {
        let mut identity = ServerIdentity {
            settings: settings.cloned(),
            tls: None,
            client: None,
            request: Mutex::default(),
            keyring: Arc::default(),
            access: Arc::default(),
            fetching: None,
        };
        let Some(settings) = settings else { return Ok(Arc::new(identity)) };
        if let Some(JwtKeys::Url(keys)) = &settings.jwt {
            identity.fetching = Some(env.spawn("jwks", keys.clone().run(env.clone())));
        }
        identity.access = Arc::new(settings.access.clone());
        let Some(tls) = &settings.tls else { return Ok(Arc::new(identity)) };
        let tls = TlsCredentials::new(env, tls.clone())?;
        match &settings.external {
            Some(external) => {
                external.trusted.iter().try_for_each(|der| tls.trust(der.clone()))?;
                tls.set_own(external.own.clone())?;
            }
            None => {
                let key = draw_key(env);
                let own = OwnCertificate::self_signed_by(&key, env, &settings.service_user, host)?;
                *identity.pending() = Some(request(&key, &own, &settings.service_user, host)?);
                tls.set_own(own)?;
            }
        }
        let options = ClientSecurityOptions {
            encryption: settings.peers.encryption,
            require_authentication: settings.peers.authentication,
            server_user: settings.peers.authentication.then(|| settings.service_user.clone()),
            kerberos: settings.kerberos.as_deref().map(own_ticket),
            ..ClientSecurityOptions::default()
        };
        let client = ClientSecurity::new(tls.clone(), options);
        (identity.tls, identity.client) = (Some(tls), Some(Arc::new(client)));
        Ok(Arc::new(identity))
    }

    pub fn settings(&self) -> Option<&SecuritySettings> {
        self.settings.as_ref()
    }

    pub fn access(&self) -> &AccessLists {
        &self.access
    }

    /// Returns what the RPC server needs.
    pub fn server(&self) -> ServerSecurity {
        ServerSecurity {
            tls: self.tls.clone(),
            tokens: self.tls.is_some().then(|| self.keyring.clone() as _),
            jwt: self.settings.as_ref().and_then(|settings| settings.jwt.clone()).map(|keys| match keys {
                JwtKeys::File(keys) => keys as Arc<dyn JwtTokenVerifier>,
                JwtKeys::Url(keys) => keys,
            }),
            kerberos: self.settings.as_ref().and_then(|settings| settings.kerberos.clone()),
            access: self.access.clone(),
            audit: None,
        }
    }

    /// Returns the caller of calls to other servers. Without settings it only states the name `unproved`.
    pub fn caller(&self, unproved: &str) -> RpcCaller {
        let user = self.settings.as_ref().map_or(unproved, |settings| &settings.service_user);
        match &self.client {
            Some(client) => RpcCaller::secure(user, client.clone()),
            None => user.into(),
        }
    }

    /// Returns the DER certificates of the CAs by which clients can verify this cluster's servers; none without TLS.
    pub fn trusted(&self) -> Vec<Vec<u8>> {
        self.tls.as_ref().map(|tls| tls.trusted().to_vec()).unwrap_or_default()
    }

    /// Returns true if the server has TLS, so that tokens can be used.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the request (PKCS#10) for a certificate of the cluster's CA, until [`ServerIdentity::certify`].
    pub fn request(&self) -> Option<Vec<u8>> {
        self.pending().as_ref().map(|request| request.der.clone())
    }

    /// Trusts the cluster's CA. A server with the operator's certificate trusts only the operator's CA.
    pub fn trust(&self, authority: Vec<u8>) -> Result<()> {
        let external = self.settings.as_ref().is_some_and(|settings| settings.external.is_some());
        match &self.tls {
            Some(tls) if !external => tls.trust(authority),
            _ => Ok(()),
        }
    }

    /// Takes the certificate that the CA signed for the own request.
    pub fn certify(&self, certificate: Vec<u8>) -> Result<()> {
        let (Some(tls), Some(request)) = (&self.tls, self.pending().clone()) else { return Ok(()) };
        let (key, chain) = (request.key, vec![certificate]);
        tls.set_own(OwnCertificate { key, chain, origin: CertificateOrigin::ClusterCa })?;
        *self.pending() = None;
        tracing::info!("this server has a certificate of the cluster's CA");
        Ok(())
    }

    /// Takes token keys; keys that are not usable are logged.
    pub fn import_keys(&self, keys: &[TokenSigningPublicKeyPb], now: WallTime) {
        let before = self.keyring.latest();
        for fault in self.keyring.import(keys, now) {
            tracing::warn!(%fault, "a token key is not usable");
        }
        let latest = self.keyring.latest();
        if latest != before {
            tracing::info!(latest, "token keys were imported");
        }
    }

    fn pending(&self) -> MutexGuard<'_, Option<PendingRequest>> {
        self.request.lock()
    }
}

/// Returns the credentials by which a server calls others before it has a certificate of the cluster's CA.
fn own_ticket(kerberos: &ServerKerberos) -> ClientKerberos {
    ClientKerberos {
        library: kerberos.library.clone(),
        credentials: KerberosCredentials::Keytab {
            file: kerberos.keytab.clone(),
            principal: kerberos.principal.clone(),
        },
        service: kerberos.service().to_string(),
    }
}

fn request(key: &EcdsaKey, own: &OwnCertificate, user: &str, host: &str) -> Result<PendingRequest> {
    Ok(PendingRequest { key: own.key.clone(), der: key.request(user, Some(host))? })
}
