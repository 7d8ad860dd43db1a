//! The line protocol's JSON Schemas in `lab/protocol` are what the code says. `make lab UPDATE=1` writes them.

use std::path::Path;

#[test]
fn the_reference_has_the_schemas_of_the_line_protocol() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol");
    for (name, schema) in andreas_lab::stdio::schemas() {
        let path = folder.join(name);
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == text, "lab/protocol/{name} is out of date: make lab UPDATE=1");
    }
}
