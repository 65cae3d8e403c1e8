use std::io::Read;

use object_store::memory::InMemory;
use tokio::runtime::{Builder, Runtime};

use super::*;

const CHUNK: usize = 10;

struct World {
    runtime: Runtime,
    store: Arc<InMemory>,
}

impl World {
    fn new() -> World {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        World { runtime, store: Arc::new(InMemory::new()) }
    }

    fn storage(&self, store: Arc<dyn ObjectStore>) -> ObjectStorage {
        let storage = ObjectStorage::new(store, "/a/b/", self.runtime.handle().clone());
        ObjectStorage { chunk_bytes: CHUNK, ..storage.expect("a legal prefix") }
    }
}

fn write(storage: &ObjectStorage, path: &str, bytes: &[u8]) -> Result<()> {
    let mut file = storage.create(path).expect("a legal path");
    file.write_all(bytes).map_err(|error| Error::io("write", &error))?;
    file.finish()
}

fn read(storage: &ObjectStorage, path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    storage.open(path).expect("a file").read_to_end(&mut bytes).expect("a store that answers");
    bytes
}

#[test]
fn files_of_all_sizes_are_read_as_written() {
    let world = World::new();
    let storage = world.storage(world.store.clone());
    for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 10 * CHUNK + 3] {
        let bytes: Vec<u8> = (0..len as u8).collect();
        let path = format!("1-a+%C3%A9/10/part-{len}");
        write(&storage, &path, &bytes).expect("a new name");
        assert_eq!(read(&storage, &path), bytes);
    }
    let names = storage.list("1-a+%C3%A9/10").expect("a store that answers");
    assert_eq!(names, ["part-0", "part-1", "part-10", "part-103", "part-11", "part-20", "part-9"]);
    assert_eq!(storage.list("").expect("a store that answers"), ["1-a+%C3%A9"]);
    assert_eq!(storage.open("1-a+%C3%A9/10").err().expect("no file").kind(), io::ErrorKind::NotFound);
    storage.remove("1-a+%C3%A9/10/part-0").expect("a file");
    assert_eq!(storage.list("1-a+%C3%A9/10").expect("a store that answers").len(), 6);
}

#[test]
fn ranges_across_blocks_are_read() {
    let world = World::new();
    let storage = world.storage(world.store.clone());
    let len = 2 * BLOCK_BYTES as usize + 5;
    let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
    let path = storage.path("f").expect("a legal path");
    let put = (world.store.clone(), PutPayload::from(bytes.clone()), path.clone());
    storage.request(async move { put.0.put(&put.2, put.1).await }).expect("memory");
    let object = Object { storage, path, len: len as u64, blocks: Mutex::default() };
    let mut out = vec![0; BLOCK_BYTES as usize + 3];
    let at = BLOCK_BYTES as usize - 1;
    object.read_at(at as u64, &mut out).expect("a range of the file");
    assert_eq!(out, bytes[at..at + out.len()]);
    let error = object.read_at(len as u64 - 1, &mut out[..2]).expect_err("beyond the end");
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_file_that_is_not_finished_is_not_there() {
    let world = World::new();
    let storage = world.storage(world.store.clone());
    for len in [1, 3 * CHUNK] {
        let mut file = storage.create("part").expect("a legal path");
        file.write_all(&vec![7; len]).expect("memory");
        drop(file);
        assert_eq!(storage.list("").expect("a store that answers"), Vec::<String>::new());
    }
}

#[test]
fn a_directory_is_claimed_once_and_nothing_is_overwritten() {
    let world = World::new();
    let storage = world.storage(world.store.clone());
    assert_eq!(storage.run_state("1-t/10"), RunState::Ended);
    let _claim = storage.claim("1-t/10").expect("a new directory");
    assert_eq!(storage.run_state("1-t/10"), RunState::Unknown);
    let error = storage.claim("1-t/10").err().expect("it is claimed");
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    write(&storage, "1-t/10/small", b"1").expect("a new name");
    assert!(write(&storage, "1-t/10/small", b"2").is_err());
    assert_eq!(read(&storage, "1-t/10/small"), b"1");
}

#[test]
fn queries_of_addresses_are_not_shown() {
    let source =
        "GET (https://a.example/b?sig=secret&x=1) status 403: <?xml version=1?><Code>Denied</Code>".into();
    let text = redacted(&object_store::Error::Generic { store: "Azure", source });
    let want = "GET (https://a.example/b) status 403: <?xml version=1?><Code>Denied</Code>";
    assert!(text.ends_with(want), "{text}");
}
