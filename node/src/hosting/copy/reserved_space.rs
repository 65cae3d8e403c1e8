//! Space that the running copies of a server have yet to use. Copies that fit one by one must not fill a device
//! together.

use std::collections::BTreeMap;

use engine::error::{Error, Result};
use engine::ids::TabletId;
use engine::replica::copy::CopyPart;
use engine::sync::Mutex;

use crate::hosting::space::{CopyBytes, SpaceWatch};

/// ENOSPC.
const NO_SPACE: i32 = 28;

/// Reserved space of all running copies, by tablet.
#[derive(Default)]
pub struct ReservedSpace {
    copies: Mutex<BTreeMap<TabletId, CopyBytes>>,
}

/// Reserved space of one copy, until the copy ends.
pub(super) struct ReservedSpaceGuard<'a> {
    space: &'a ReservedSpace,
    tablet: TabletId,
}

impl ReservedSpace {
    /// Reserves space for the copy of a tablet. An error of lack of space if its directories have too little, less what
    /// other copies have reserved.
    pub(super) fn reserve(
        &self,
        watch: &SpaceWatch,
        tablet: TabletId,
        copy: CopyBytes,
    ) -> Result<ReservedSpaceGuard<'_>> {
        let mut copies = self.copies.lock();
        let others: Vec<CopyBytes> = copies.values().cloned().collect();
        if let Some(why) = watch.refuse_copy(&copy, &others) {
            return Err(Error { errno: Some(NO_SPACE), ..Error::throttled(why) });
        }
        copies.insert(tablet, copy);
        Ok(ReservedSpaceGuard { space: self, tablet })
    }
}

impl ReservedSpaceGuard<'_> {
    /// Subtracts bytes of a part that are written.
    pub(super) fn on_written(&self, part: CopyPart, bytes: u64) {
        let mut copies = self.space.copies.lock();
        let Some(copy) = copies.get_mut(&self.tablet) else { return };
        match part {
            CopyPart::Manifest => {}
            CopyPart::File(_) => copy.files = copy.files.saturating_sub(bytes),
            CopyPart::Segment(_) => copy.log = copy.log.saturating_sub(bytes),
        }
    }
}

impl Drop for ReservedSpaceGuard<'_> {
    fn drop(&mut self) {
        self.space.copies.lock().remove(&self.tablet);
    }
}
