//! Credentials of a trial's servers and clients.

use std::sync::Arc;
use std::time::Duration;

use engine::error::Result;
use nyala_common::env::Env;
use nyala_common::rpc::client::Proxy;
use nyala_common::security::pki::{CertAuthority, CertRequest, CertValidity, EcdsaKey};
use nyala_common::security::tls::{draw_key, draw_serial};
use nyala_common::security::token::{TokenConfig, TokenKey, TokenKeyring, TokenSigner};
use nyala_common::security::{
    CertificateOrigin, ClientSecurity, ClientSecurityOptions, EncryptionPolicy, OwnCertificate, PrivateKey,
    RpcCaller, SecurityLevel, ServerSecurity, TlsCredentials, TlsSettings,
};
use nyala_proto::kudu::security::SignedTokenPb;
use sim_plan::RandomStream;

use super::settings::{CLIENTS, PORT, SERVERS, client_name, server_name};

/// User that tokens name.
const TOKEN_USER: &str = "tina";
/// Age in seconds of a token that has expired long ago.
const EXPIRED: i64 = 1_000_000;

/// Credentials of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Credentials {
    /// Only a name, no TLS.
    Name,
    /// TLS, and only a name.
    Tls,
    Token,
    ExpiredToken,
}

pub(super) struct TrialSecurity {
    pub encryption: SecurityLevel,
    clients: [Credentials; CLIENTS],
    signer: TokenSigner,
    authority: CertAuthority,
    now: i64,
}

impl TrialSecurity {
    /// Draws who has which credentials; `micros` is the time since 1970.
    pub(super) fn draw(random: &mut RandomStream, micros: u64) -> TrialSecurity {
        let now = (micros / 1_000_000) as i64;
        let encryption = random.weighted(&[
            (SecurityLevel::Disabled, 40),
            (SecurityLevel::Optional, 30),
            (SecurityLevel::Required, 30),
        ]);
        let credentials = |random: &mut RandomStream| match encryption {
            SecurityLevel::Disabled => Credentials::Name,
            _ => random.pick(&[Credentials::Tls, Credentials::Token, Credentials::ExpiredToken]),
        };
        let config = TokenConfig::default();
        let lifetime = config.lifetime(now - config.rotation.as_secs() as i64);
        let key = TokenKey::from_seed(0, &[7; 32], lifetime);
        let secret = EcdsaKey::from_secret(&[9; 32]).expect("a number that is a key");
        let validity = CertValidity { now_s: now, lasts: Duration::from_secs(3_600) };
        TrialSecurity {
            encryption,
            clients: std::array::from_fn(|_| credentials(random)),
            signer: TokenSigner::new(config, [key]),
            authority: CertAuthority::create(secret, 1, validity).expect("a certificate"),
            now,
        }
    }

    /// Returns the user as which servers must know a client.
    pub(super) fn user(&self, client: usize) -> String {
        match self.clients[client] {
            Credentials::Token => TOKEN_USER.to_string(),
            _ => client_name(client),
        }
    }

    pub(super) fn server(&self, env: &Env, server: usize) -> Result<ServerSecurity> {
        if self.encryption == SecurityLevel::Disabled {
            return Ok(ServerSecurity::default());
        }
        let key = draw_key(env);
        let request = CertRequest::parse(&key.request("kudu", Some(&server_name(server)))?)?;
        let validity = CertValidity { now_s: self.now, lasts: Duration::from_secs(3_600) };
        let chain = vec![self.authority.sign(&request, draw_serial(env), validity)?];
        let private = PrivateKey::from_pkcs8_der(key.pkcs8_der()?.to_vec());
        let tls = self.trusting(env)?;
        tls.set_own(OwnCertificate { key: private, chain, origin: CertificateOrigin::ClusterCa })?;
        let keyring = TokenKeyring::default();
        keyring.import(&self.signer.public_keys(-1), env.now().wall);
        Ok(ServerSecurity { tls: Some(tls), tokens: Some(Arc::new(keyring)), ..ServerSecurity::default() })
    }

    pub(super) fn client(&self, env: &Env, client: usize) -> Result<RpcCaller> {
        let credentials = self.clients[client];
        if credentials == Credentials::Name {
            return Ok(client_name(client).as_str().into());
        }
        let encryption = EncryptionPolicy::Required;
        let options = ClientSecurityOptions { encryption, ..ClientSecurityOptions::default() };
        let own = ClientSecurity::new(self.trusting(env)?, options);
        let age = if credentials == Credentials::ExpiredToken { EXPIRED } else { 0 };
        if credentials != Credentials::Tls {
            let token = self.token(age);
            own.set_token(token);
        }
        Ok(RpcCaller::secure(&client_name(client), Arc::new(own)))
    }

    /// Returns unconnected proxies to all servers.
    pub(super) fn proxies(&self, env: &Env, caller: &RpcCaller) -> Arc<Vec<Proxy>> {
        let address = |server| format!("{}:{PORT}", server_name(server));
        let proxy = |server| Proxy::new(env.clone(), address(server).as_str(), caller.clone());
        Arc::new((0..SERVERS).map(proxy).collect())
    }

    /// Gives a client an expired token, if it is one that comes with those.
    pub(super) fn renew_expired(&self, caller: &RpcCaller, client: usize) -> bool {
        let is_expired = self.clients[client] == Credentials::ExpiredToken;
        let security = caller.security().filter(|_| is_expired);
        security.inspect(|security| security.set_token(self.token(EXPIRED))).is_some()
    }

    fn token(&self, age: i64) -> SignedTokenPb {
        self.signer.authn(TOKEN_USER, self.now - age).expect("a key that signs")
    }

    fn trusting(&self, env: &Env) -> Result<Arc<TlsCredentials>> {
        let tls = TlsCredentials::new(env, TlsSettings::default())?;
        tls.trust(self.authority.certificate_der().to_vec())?;
        Ok(tls)
    }
}
