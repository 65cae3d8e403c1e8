//! Replication factors that a master's flags allow: the catalog refuses a table with any other.

/// Flag of the replication factor of tables that name none.
pub(super) const DEFAULT_NUM_REPLICAS: &str = "default_num_replicas";

/// Allowed replication factors.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplicationFactors {
    pub min: u64,
    pub max: u64,
    /// True if even ones are allowed.
    pub with_even: bool,
}

impl ReplicationFactors {
    /// Returns the fault of limits with which no table can be created.
    pub(super) fn check(self) -> Result<(), String> {
        let (min, max) = (self.min, self.max);
        if min > max {
            return Err(format!(
                "{min} is above max_num_replicas ({max}), so that no table could be created; lower it"
            ));
        }
        Ok(())
    }

    /// Returns the fault of the factor of tables that name none.
    pub(super) fn check_default(self, replicas: u64) -> Result<(), String> {
        let (min, max) = (self.min, self.max);
        if !(min..=max).contains(&replicas) {
            return Err(format!(
                "{replicas} is not between min_num_replicas ({min}) and max_num_replicas ({max}); give a number \
                 between them"
            ));
        }
        if replicas.is_multiple_of(2) && !self.with_even {
            return Err(format!(
                "{replicas} is even, which survives no more failures than one replica fewer; give an odd number"
            ));
        }
        Ok(())
    }
}
