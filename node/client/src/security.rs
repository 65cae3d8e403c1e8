//! Security of a client: encryption, trusted CAs, and what it presents to servers.
//!
//! ```text
//!   first connection:  own credentials (ticket, JSON Web Token, name) ──▶ leading master ──▶ token, CA certificates
//!   later connections: TLS verified by the CA, token          ──▶ any server; rejected token ──▶ own credentials
//! ```

use std::sync::Arc;

use engine::error::{Error, Result};

use nyala_common::env::Env;
use nyala_common::env::kerberos::{ClientKerberos, KerberosCredentials};
use nyala_common::security::tls::certificates_from_pem;
use nyala_common::security::{ClientSecurity, ClientSecurityOptions, RpcCaller, TlsCredentials, TlsSettings};
use nyala_proto::kudu::master::ConnectToMasterResponsePb;

pub use nyala_common::security::{EncryptionPolicy, SecretText};

/// First component of the servers' principals unless the settings name another.
const KERBEROS_SERVICE: &str = "kudu";

/// Security settings of a client. By default it encrypts where servers can, and states its user name.
#[derive(Debug, Clone, Default)]
pub struct SecurityConfig {
    pub encryption: EncryptionPolicy,
    /// PEM text of the CAs that servers' certificates must chain to. `None`: the CA that the leading master names is
    /// trusted, which protects against readers of the network, not against a false master.
    pub ca_certificates: Option<Vec<u8>>,
    /// JSON Web Token to present. Needs [`SecurityConfig::ca_certificates`].
    pub jwt: Option<SecretText>,
    /// True if the client refuses servers to which it could only state its name.
    pub require_authentication: bool,
    /// First component of the servers' Kerberos principals; `None`: `kudu`. A client with a ticket presents it to
    /// servers that take tickets, if the environment has Kerberos (cargo feature `kerberos`).
    pub sasl_protocol_name: Option<String>,
}

impl SecurityConfig {
    /// Returns the caller of all connections of a client, or of a program that calls servers without one.
    pub fn caller(&self, env: &Env, user: &str) -> Result<RpcCaller> {
        if self.jwt.is_some() && self.ca_certificates.is_none() {
            return Err(Error::invalid(
                "JSON Web Token: would be sent to a server that is not verified; give the certificates of its CA",
            ));
        }
        let kerberos = self.kerberos(env)?;
        let tls = TlsCredentials::new(env, TlsSettings::default())?;
        if let Some(pem) = &self.ca_certificates {
            certificates_from_pem(pem, "CA certificates")?.into_iter().try_for_each(|der| tls.trust(der))?;
        }
        let options = ClientSecurityOptions {
            encryption: self.encryption,
            verify_server: self.ca_certificates.is_some(),
            jwt: self.jwt.clone(),
            kerberos,
            require_authentication: self.require_authentication,
            server_user: None,
        };
        Ok(RpcCaller::secure(user, Arc::new(ClientSecurity::new(tls, options))))
    }

    fn kerberos(&self, env: &Env) -> Result<Option<ClientKerberos>> {
        match (env.net.kerberos(), &self.sasl_protocol_name) {
            (None, None) => Ok(None),
            (None, Some(name)) => Err(Error::invalid(format!(
                "sasl_protocol_name: this program was built without Kerberos (given {name}); leave it out, or build \
                 with the cargo feature kerberos"
            ))),
            (Some(library), name) => Ok(Some(ClientKerberos {
                library,
                credentials: KerberosCredentials::Cache,
                service: name.as_deref().unwrap_or(KERBEROS_SERVICE).to_string(),
            })),
        }
    }
}

/// Takes the token and the CA that the leading master gave. A client with CAs of its own keeps those.
pub(super) fn learn(caller: &RpcCaller, response: &ConnectToMasterResponsePb) {
    let Some(security) = caller.security() else { return };
    if !security.verifies_server() {
        for der in &response.ca_cert_der {
            if let Err(error) = security.tls.trust(der.to_vec()) {
                tracing::warn!(%error, "a CA certificate of the masters is not usable");
            }
        }
    }
    if let Some(token) = &response.authn_token {
        security.set_token(token.clone());
    }
}
