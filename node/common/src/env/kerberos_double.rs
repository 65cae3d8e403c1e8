//! Double of Kerberos for tests: contexts of two messages without any secret, and a rule for principals of one realm.

use super::kerberos::{Kerberos, KerberosContext, KerberosCredentials, KerberosStep};

/// Kerberos without KDC. The client is `principal`, if there is one; servers believe every token.
#[derive(Debug, Clone, Default)]
pub struct KerberosDouble {
    /// Principal of the client's ticket; `None` without a ticket.
    pub principal: Option<String>,
}

impl Kerberos for KerberosDouble {
    fn check_keytab(&self, _file: &str, principal: &str, _world_readable: bool) -> Result<String, String> {
        Ok(format!("{principal}@R"))
    }

    fn initiate(
        &self,
        _credentials: &KerberosCredentials,
        service: &str,
        host: &str,
    ) -> Result<Box<dyn KerberosContext>, String> {
        let client = self.principal.clone().ok_or("no ticket; run kinit")?;
        let first = format!("ticket {client} for {service}/{host}");
        Ok(Box::new(ContextDouble { client, first: Some(first), initiator: true, sent: 0, received: 0 }))
    }

    fn accept(&self, _keytab: &str) -> Result<Box<dyn KerberosContext>, String> {
        let client = String::new();
        Ok(Box::new(ContextDouble { client, first: None, initiator: false, sent: 0, received: 0 }))
    }

    fn accept_web(&self, keytab: &str) -> Result<Box<dyn KerberosContext>, String> {
        self.accept(keytab)
    }

    fn local_name(&self, principal: &str) -> Option<String> {
        principal.strip_suffix("@OTHER").map(|name| format!("other-{name}"))
    }
}

/// One side of a context: `ticket CLIENT for SERVICE/HOST`, then `welcome`.
struct ContextDouble {
    client: String,
    /// First token, until it is sent.
    first: Option<String>,
    initiator: bool,
    sent: u8,
    received: u8,
}

impl KerberosContext for ContextDouble {
    fn step(&mut self, token: &[u8]) -> Result<KerberosStep, String> {
        if let Some(first) = self.first.take() {
            return Ok(KerberosStep { token: first.into_bytes(), complete: false });
        }
        if self.initiator {
            let complete = token == b"welcome";
            return if complete { Ok(KerberosStep { token: Vec::new(), complete }) } else { Err(bad()) };
        }
        let text = std::str::from_utf8(token).map_err(|_| bad())?;
        let (client, _) =
            text.strip_prefix("ticket ").and_then(|text| text.split_once(" for ")).ok_or_else(bad)?;
        self.client = client.to_string();
        Ok(KerberosStep { token: b"welcome".to_vec(), complete: true })
    }

    fn wrap(&mut self, message: &[u8]) -> Result<Vec<u8>, String> {
        let bytes = [&[b'W', self.sent], message].concat();
        self.sent = self.sent.wrapping_add(1);
        Ok(bytes)
    }

    fn unwrap(&mut self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let message = bytes.strip_prefix(&[b'W', self.received]).ok_or("a message is out of sequence")?;
        self.received = self.received.wrapping_add(1);
        Ok(message.to_vec())
    }

    fn client(&self) -> Result<String, String> {
        Ok(self.client.clone())
    }
}

fn bad() -> String {
    "the token is not valid".to_string()
}
