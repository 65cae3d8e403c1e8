//! Secrets in the catalog: the CA is created once, token key numbers are never used twice, rows restore all of it.

use std::collections::BTreeMap;

use engine::catalog::{
    AuthorityRecord, Catalog, CatalogCommand, CatalogConfig, CatalogEffects, CatalogEvent, EventResult,
    SecretsChange, SystemRowKey, TokenKeyRecord,
};
use engine::time::ClockReading;

struct Master {
    catalog: Catalog,
    rows: BTreeMap<SystemRowKey, Vec<u8>>,
}

impl Master {
    fn new() -> Master {
        let catalog = Catalog::load(CatalogConfig::default(), [1, 2], ClockReading::default(), []);
        Master { catalog: catalog.expect("nothing to load"), rows: BTreeMap::new() }
    }

    /// Runs a change and stores its rows; returns the error's text.
    fn change(&mut self, change: SecretsChange) -> Result<(), String> {
        let mut out = CatalogEffects::default();
        let command = CatalogCommand::ChangeSecrets(Box::new(change));
        let event = CatalogEvent::Command { ticket: 1, caller: String::new(), command };
        self.catalog.step(ClockReading::default(), event, &mut out);
        for write in out.writes {
            let (entry_type, entry_id) = write.key.columns();
            assert_eq!(SystemRowKey::from_columns(entry_type, &entry_id).expect("a key"), write.key);
            match write.metadata {
                Some(metadata) => drop(self.rows.insert(write.key, metadata)),
                None => drop(self.rows.remove(&write.key)),
            }
        }
        match out.replies.remove(0).result {
            EventResult::Command(result) => result.map(|_| ()).map_err(|error| error.error.message),
            EventResult::Heartbeat(_) => panic!("a reply to a command"),
        }
    }

    fn restart(&mut self) {
        let before = self.catalog.secrets().clone();
        let rows: Vec<_> = self.rows.clone().into_iter().collect();
        self.catalog =
            Catalog::load(CatalogConfig::default(), [3, 4], ClockReading::default(), rows).expect("its rows");
        assert_eq!(*self.catalog.secrets(), before);
    }

    fn numbers(&self) -> Vec<i64> {
        self.catalog.secrets().token_keys.keys().copied().collect()
    }
}

fn authority(byte: u8) -> SecretsChange {
    let authority = AuthorityRecord { secret: vec![byte; 32], certificate: vec![byte; 300] };
    SecretsChange { authority: Some(authority), ..SecretsChange::default() }
}

fn key(number: i64, removed: &[i64]) -> SecretsChange {
    let record = TokenKeyRecord { seed: [number as u8; 32], created_s: number, expires_s: number + 10 };
    SecretsChange {
        new_token_key: Some((number, record)),
        removed_token_keys: removed.to_vec(),
        ..SecretsChange::default()
    }
}

#[test]
fn the_ca_is_created_once() {
    let mut master = Master::new();
    assert_eq!(master.change(authority(1)), Ok(()));
    master.restart();
    let error = master.change(authority(2)).expect_err("there is one");
    assert!(error.contains("has one already"), "{error}");
    assert_eq!(master.catalog.secrets().authority.as_ref().map(|ca| ca.secret[0]), Some(1));
}

#[test]
fn token_key_numbers_are_never_used_twice() {
    let mut master = Master::new();
    assert!(master.change(key(1, &[])).is_err(), "the first number is 0");
    for number in 0..4 {
        assert_eq!(master.change(key(number, &[])), Ok(()));
    }
    assert!(master.change(key(3, &[])).is_err() && master.change(key(5, &[])).is_err());
    let removal =
        |numbers: &[i64]| SecretsChange { removed_token_keys: numbers.to_vec(), ..SecretsChange::default() };
    assert!(master.change(removal(&[0, 3])).is_err(), "the newest number tells the next one");
    assert_eq!(master.numbers(), [0, 1, 2, 3], "nothing of a rejected change is stored");
    assert_eq!(master.change(key(4, &[0, 1, 2, 3])), Ok(()));
    assert_eq!(master.numbers(), [4]);
    master.restart();
    assert!(master.change(key(0, &[])).is_err() && master.change(removal(&[4])).is_err());
    assert_eq!(master.change(key(5, &[4])), Ok(()));
    master.restart();
    assert_eq!(master.numbers(), [5]);
}

#[test]
fn secrets_are_not_shown() {
    let mut master = Master::new();
    master.change(authority(0xab)).expect("the first");
    master.change(key(0, &[])).expect("the first");
    let shown = format!("{:?} {:?}", master.catalog.secrets(), key(0, &[]));
    assert_eq!(shown.matches("redacted").count(), 3, "{shown}");
    assert!(!shown.contains("171, 171") && !shown.contains("0, 0, 0, 0"), "{shown}");
}

#[test]
fn other_spellings_of_a_row_are_rejected() {
    for id in ["1", "-000000000000000001", "00000000000000000001", "+000000000000000001", "", "x"] {
        assert!(SystemRowKey::from_columns(6, id).is_err(), "{id:?}");
    }
    assert!(SystemRowKey::from_columns(5, "root-ca-info").is_err());
}
