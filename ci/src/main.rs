mod proto;
fn main() -> anyhow::Result<()> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    proto::write(root)?;
    proto::check(root)
}
