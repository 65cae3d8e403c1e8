//! Coarse access control: users, superusers and servers, and the methods that each may call. Pure.
//!
//! ```text
//!   method ──▶ MethodRole ──┐
//!   user ─────▶ AccessLists ┴──▶ allowed, or `Not authorized: unauthorized access to method: X`
//! ```

use std::collections::BTreeSet;

use engine::error::{Error, Result};

/// Users who pass a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessList {
    Everyone,
    Users(BTreeSet<String>),
}

/// First characters that no user name may have: they are reserved for later forms of a list.
const RESERVED: &[char] = &['!', '@', '#', '$', '%', '*', '-', '=', '+', '\'', '"'];

impl AccessList {
    /// Parses names separated by commas, or `*` alone. Blank entries are skipped.
    pub fn parse(text: &str) -> Result<AccessList> {
        if text.trim() == "*" {
            return Ok(AccessList::Everyone);
        }
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        let users = names.map(|name| match name.starts_with(RESERVED) {
            true => Err(Error::invalid(format!(
                "access list: a user name begins with a reserved character ({name:?}); list short names, or * alone"
            ))),
            false => Ok(name.to_string()),
        });
        Ok(AccessList::Users(users.collect::<Result<_>>()?))
    }

    /// Returns the list of one user.
    pub fn user(name: &str) -> AccessList {
        AccessList::Users(BTreeSet::from([name.to_string()]))
    }

    pub fn has(&self, user: &str) -> bool {
        match self {
            AccessList::Everyone => true,
            AccessList::Users(users) => users.contains(user),
        }
    }
}

/// Callers for whom a method is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MethodRole {
    /// Users and superusers.
    Client,
    /// Users, superusers and the cluster's servers.
    ClientOrService,
    /// Superusers.
    Superuser,
    /// Superusers and the cluster's servers.
    Service,
    /// As [`MethodRole::Service`], for a method that operators call, too: the audit log has the servers' calls as well.
    SuperuserOrService,
    /// The cluster's servers.
    ServiceOnly,
    /// As [`MethodRole::Client`]; superusers only if tablet servers check authorization tokens.
    ClientUnlessFineGrained,
}

/// The access lists of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLists {
    /// Name of the user that the cluster's servers act as.
    pub service: AccessList,
    pub superusers: AccessList,
    pub users: AccessList,
    /// True if authorization tokens are checked (`tserver_enforce_access_control`).
    pub fine_grained: bool,
}

impl Default for AccessLists {
    fn default() -> AccessLists {
        AccessLists::open()
    }
}

impl AccessLists {
    /// Lists that let any user call any method, for servers behind another guard.
    pub fn open() -> AccessLists {
        AccessLists {
            service: AccessList::Everyone,
            superusers: AccessList::Everyone,
            users: AccessList::Everyone,
            fine_grained: false,
        }
    }

    /// Creates the lists of a server from `superuser_acl` and `user_acl`. Without superusers the service user is one.
    pub fn new(service_user: &str, superuser_acl: &str, user_acl: &str) -> Result<AccessLists> {
        let superusers = AccessList::parse(superuser_acl).map_err(|error| error.context("superuser_acl"))?;
        let nobody = AccessList::Users(BTreeSet::new());
        Ok(AccessLists {
            service: AccessList::user(service_user),
            superusers: if superusers == nobody { AccessList::user(service_user) } else { superusers },
            users: AccessList::parse(user_acl).map_err(|error| error.context("user_acl"))?,
            fine_grained: false,
        })
    }

    /// Returns true if `user` may call a method of this role.
    pub fn allows(&self, role: MethodRole, user: &str) -> bool {
        let superuser = self.superusers.has(user);
        match role {
            MethodRole::Client => superuser || self.users.has(user),
            MethodRole::ClientOrService => superuser || self.users.has(user) || self.service.has(user),
            MethodRole::Superuser => superuser,
            MethodRole::Service | MethodRole::SuperuserOrService => superuser || self.service.has(user),
            MethodRole::ServiceOnly => self.service.has(user),
            MethodRole::ClientUnlessFineGrained => superuser || !self.fine_grained && self.users.has(user),
        }
    }

    /// Returns true if the user is a server of the cluster or a superuser.
    pub fn is_privileged(&self, user: &str) -> bool {
        self.allows(MethodRole::Service, user)
    }
}

/// Returns the text of a refusal. Clients and their tests compare it.
pub fn refusal_text(method: &str) -> String {
    format!("Not authorized: unauthorized access to method: {method}")
}

#[cfg(test)]
mod tests;
