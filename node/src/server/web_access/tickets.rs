//! Kerberos tickets of the web port's clients: `Authorization: Negotiate` (RFC 4559), one message each way.
//!
//! A client whose mechanism needs several messages is refused: Kerberos needs one.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::error::{Error, Result};

use crate::server::flags::Flags;
use nyala_common::env::Env;
use nyala_common::env::kerberos::{BindingFaults, ServerKerberos};

/// Request for a ticket.
pub(super) const CHALLENGE: &str = "Negotiate";

/// Keys of the web port, by which it reads tickets.
pub(super) struct WebTickets {
    /// The keytab, and the mapping of principals to users, which is that of the RPC port.
    kerberos: ServerKerberos,
}

impl fmt::Debug for WebTickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebTickets").field("keytab", &self.kerberos.keytab).finish_non_exhaustive()
    }
}

impl WebTickets {
    /// Reads the settings; checks the keytab.
    pub(super) fn from_flags(env: &Env, flags: &Flags) -> Result<Option<WebTickets>> {
        let keytab = flags.text("spnego_keytab_file");
        match (flags.bool("webserver_require_spnego"), keytab.is_empty()) {
            (false, true) => return Ok(None),
            (false, false) => {
                return Err(Error::invalid(
                    "spnego_keytab_file: of no use without webserver_require_spnego; set both or none",
                ));
            }
            (true, true) => {
                return Err(Error::invalid(
                    "webserver_require_spnego: the key of HTTP/HOST is missing (no spnego_keytab_file); name a keytab \
                     that has it",
                ));
            }
            (true, false) => {}
        }
        let Some(library) = env.net.kerberos() else {
            return Err(Error::invalid(
                "webserver_require_spnego: this program was built without Kerberos; leave it out, or build with the \
                 cargo feature kerberos",
            ));
        };
        let world_readable = flags.bool("allow_world_readable_credentials");
        let checked = library.check_keytab(&keytab, "", world_readable);
        checked.map_err(|why| Error::invalid(format!("spnego_keytab_file: {why}")))?;
        let (principal, faults) = (String::new(), BindingFaults::default());
        let host_rules = flags.bool("use_system_auth_to_local");
        let kerberos = ServerKerberos { library, keytab, principal, host_rules, faults };
        Ok(Some(WebTickets { kerberos }))
    }

    /// Returns the user of a header `Authorization`; `None` if it has no ticket for this server. May wait for files.
    pub(super) fn user(&self, header: &str) -> Option<String> {
        match self.principal(header) {
            Ok(principal) => {
                tracing::debug!(principal = %principal.escape_debug(), "web request with a ticket");
                // A principal that is no user sees the pages, too, and has no user's rights.
                Some(self.kerberos.user(&principal).unwrap_or(principal))
            }
            Err(why) => {
                tracing::debug!(why = %why.escape_debug(), "web request refused");
                None
            }
        }
    }

    /// Returns the principal of the ticket.
    fn principal(&self, header: &str) -> std::result::Result<String, String> {
        let (scheme, token) = header.split_once(' ').ok_or("the header has one word")?;
        if !scheme.eq_ignore_ascii_case(CHALLENGE) {
            return Err("the header has no ticket".to_string());
        }
        let token = STANDARD.decode(token.trim()).map_err(|_| "the ticket is not base64")?;
        if token.is_empty() {
            return Err("the ticket is empty".to_string());
        }
        let mut context = self.kerberos.library.accept_web(&self.kerberos.keytab)?;
        match context.step(&token)?.complete {
            true => context.client(),
            false => Err("the mechanism needs more messages than a request has".to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use nyala_common::env::kerberos_double::KerberosDouble;

    #[test]
    fn a_request_needs_a_whole_ticket_in_the_right_form() {
        let kerberos = ServerKerberos {
            library: Arc::new(KerberosDouble::default()),
            keytab: String::new(),
            principal: String::new(),
            host_rules: true,
            faults: BindingFaults::default(),
        };
        let tickets = WebTickets { kerberos };
        let ticket = STANDARD.encode("ticket ann@R for HTTP/h");
        assert_eq!(tickets.principal(&format!("negotiate {ticket}")), Ok("ann@R".to_string()));
        for (principal, user) in [("ann@R", "ann"), ("HTTP/h@R", "HTTP"), ("bob@OTHER", "other-bob")] {
            let ticket = STANDARD.encode(format!("ticket {principal} for HTTP/h"));
            assert_eq!(tickets.user(&format!("Negotiate {ticket}")).as_deref(), Some(user));
        }
        for header in [
            "Negotiate".to_string(),
            "Negotiate ".to_string(),
            "Negotiate !".to_string(),
            format!("Basic {ticket}"),
            format!("Negotiate {}", STANDARD.encode("forged")),
        ] {
            assert_eq!(tickets.user(&header), None, "{header:?}");
        }
    }
}
