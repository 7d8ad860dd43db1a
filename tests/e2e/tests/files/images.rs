//! Images of `hack/image`: whole, as the layout's specification wants them, and the same bytes each time.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use andreas_e2e::release::architecture;
use anyhow::{Context as _, Result, ensure};
use flate2::read::GzDecoder;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A program that ends at once, built by the machine's C compiler with `flags`.
fn program(folder: &Path, name: &str, flags: &[&str]) -> Result<PathBuf> {
    let path = folder.join(name);
    let source = folder.join("program.c");
    fs::write(&source, "void _start(void) { for (;;) {} }\n")?;
    let built = Command::new("cc").args(flags).arg("-o").arg(&path).arg(&source).status()?;
    ensure!(built.success(), "cc {flags:?}: {built}");
    Ok(path)
}

fn static_program(folder: &Path) -> Result<PathBuf> {
    program(folder, "server", &["-static", "-nostdlib", "-g"])
}

/// `hack/image`, created a day after 1970 began.
fn image(out: &Path, arguments: &[&str], programs: &[&Path]) -> Result<Output> {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/image"))
        .args(["--reference", "registry.example/team/server:1.2"])
        .arg("--out")
        .arg(out)
        .args(arguments)
        .args(programs)
        .env("SOURCE_DATE_EPOCH", "86400")
        .output()
        .context("hack/image")
}

fn sha256(data: &[u8]) -> String {
    let hex: String = digest(&SHA256, data).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// An unpacked archive, and the blobs that something in it named.
struct Layout {
    folder: TempDir,
    named: BTreeSet<String>,
}

impl Layout {
    fn of(archive: &Path) -> Result<Layout> {
        let folder = TempDir::new()?;
        let unpacked = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(folder.path()).status()?;
        ensure!(unpacked.success(), "tar: {unpacked}");
        Ok(Layout { folder, named: BTreeSet::new() })
    }

    fn json(&self, name: &str) -> Result<Value> {
        Ok(serde_json::from_slice(&fs::read(self.folder.path().join(name))?)?)
    }

    /// The blob of a descriptor, if its size and digest are the descriptor's.
    fn blob(&mut self, descriptor: &Value) -> Result<Vec<u8>> {
        let wanted = descriptor["digest"].as_str().context("a digest")?;
        let name = wanted.strip_prefix("sha256:").context("sha256")?;
        let data = fs::read(self.folder.path().join("blobs/sha256").join(name))?;
        ensure!(sha256(&data) == wanted, "{wanted} is {}", sha256(&data));
        ensure!(Some(data.len() as u64) == descriptor["size"].as_u64(), "{descriptor}: {} bytes", data.len());
        self.named.insert(name.to_owned());
        Ok(data)
    }

    /// Names of all blobs.
    fn blobs(&self) -> Result<BTreeSet<String>> {
        let entries = fs::read_dir(self.folder.path().join("blobs/sha256"))?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }
}

/// `tar -tv` of a layer: mode, owner and group, size, date, time, name.
fn listed(layer: &[u8]) -> Result<Vec<String>> {
    let folder = TempDir::new()?;
    let path = folder.path().join("layer.tar");
    fs::write(&path, layer)?;
    let out = Command::new("tar").args(["--utc", "--numeric-owner", "-tvf"]).arg(&path).output()?;
    ensure!(out.status.success(), "tar -t: {}", String::from_utf8_lossy(&out.stderr));
    let columns = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(String::from_utf8(out.stdout)?.lines().map(columns).collect())
}

#[test]
fn every_digest_and_size_of_an_image_is_that_of_its_content() -> Result<()> {
    let folder = TempDir::new()?;
    let server = static_program(folder.path())?;
    let base = folder.path().join("base.tar");
    let packed =
        Command::new("tar").arg("-cf").arg(&base).arg("-C").arg(folder.path()).arg("program.c").status()?;
    ensure!(packed.success(), "tar: {packed}");
    let out = folder.path().join("server.tar");
    let base_argument = base.to_string_lossy().into_owned();
    let made = image(
        &out,
        &["--base", &base_argument, "--user", "0:0", "--label", "org.example.a=b=c"],
        &[&server],
    )?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));

    let mut layout = Layout::of(&out)?;
    assert_eq!(layout.json("oci-layout")?, json!({"imageLayoutVersion": "1.0.0"}));
    let index = layout.json("index.json")?;
    assert_eq!(index["schemaVersion"], 2);
    let [entry] = index["manifests"].as_array().context("manifests")?.as_slice() else {
        anyhow::bail!("not one manifest: {index}");
    };
    assert_eq!(entry["digest"].as_str(), Some(String::from_utf8(made.stdout)?.trim()), "the printed digest");
    assert_eq!(entry["annotations"]["io.containerd.image.name"], "registry.example/team/server:1.2");
    assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], "1.2");

    let manifest: Value = serde_json::from_slice(&layout.blob(entry)?)?;
    assert_eq!(manifest["mediaType"], entry["mediaType"]);
    let config: Value = serde_json::from_slice(&layout.blob(&manifest["config"])?)?;
    assert_eq!(entry["platform"], json!({"os": "linux", "architecture": architecture()}));
    assert_eq!((&config["os"], &config["architecture"]), (&json!("linux"), &json!(architecture())));
    assert_eq!(config["created"], "1970-01-02T00:00:00Z");
    assert_eq!(config["config"]["User"], "0:0");
    assert_eq!(config["config"]["Entrypoint"], json!(["/usr/local/bin/server"]));
    assert_eq!(config["config"]["Labels"], json!({"org.example.a": "b=c"}));

    let mut layers = Vec::new();
    for descriptor in manifest["layers"].as_array().context("layers")? {
        let mut layer = Vec::new();
        GzDecoder::new(layout.blob(descriptor)?.as_slice()).read_to_end(&mut layer)?;
        layers.push(layer);
    }
    let ids: Vec<_> = layers.iter().map(|layer| sha256(layer)).collect();
    assert_eq!(config["rootfs"], json!({"type": "layers", "diff_ids": ids}));
    assert_eq!(layers[0], fs::read(&base)?);
    assert_eq!(layout.blobs()?, layout.named, "blobs that nothing names");

    let names = listed(&layers[1])?;
    let [usr, local, bin, server_entry] = names.as_slice() else {
        anyhow::bail!("{names:?}");
    };
    assert_eq!(usr, "drwxr-xr-x 0/0 0 1970-01-01 00:00 usr/");
    assert_eq!(local, "drwxr-xr-x 0/0 0 1970-01-01 00:00 usr/local/");
    assert_eq!(bin, "drwxr-xr-x 0/0 0 1970-01-01 00:00 usr/local/bin/");
    let size: u64 = server_entry
        .strip_prefix("-rwxr-xr-x 0/0 ")
        .and_then(|rest| rest.strip_suffix(" 1970-01-01 00:00 usr/local/bin/server"))
        .with_context(|| server_entry.clone())?
        .parse()?;
    ensure!(size < fs::metadata(&server)?.len(), "the program was not stripped: {size} bytes");
    Ok(())
}

#[test]
fn the_same_program_gives_the_same_image() -> Result<()> {
    let folder = TempDir::new()?;
    let server = static_program(folder.path())?;
    // Another folder, time and mode.
    let elsewhere = TempDir::new()?;
    let copy = elsewhere.path().join("server");
    fs::write(&copy, fs::read(&server)?)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o700))?;
    fs::File::options().write(true).open(&copy)?.set_modified(std::time::UNIX_EPOCH)?;

    let (first, second) = (folder.path().join("first.tar"), elsewhere.path().join("second.tar"));
    let made = [image(&first, &[], &[&server])?, image(&second, &[], &[&copy])?];
    ensure!(made.iter().all(|out| out.status.success()), "{made:?}");
    assert_eq!(made[0].stdout, made[1].stdout);
    ensure!(fs::read(&first)? == fs::read(&second)?, "two archives of one program differ");

    let other = image(&second, &["--user", "1:1"], &[&copy])?;
    assert_ne!(made[0].stdout, other.stdout, "another user is another image");
    Ok(())
}

#[test]
fn a_program_that_needs_libraries_has_no_image_without_them() -> Result<()> {
    let folder = TempDir::new()?;
    let dynamic = program(folder.path(), "dynamic", &["-nostartfiles"])?;
    let out = folder.path().join("dynamic.tar");
    let made = image(&out, &[], &[&dynamic])?;
    let stderr = String::from_utf8_lossy(&made.stderr);
    ensure!(!made.status.success() && stderr.contains("--base") && stderr.contains("ld-linux"), "{stderr}");
    ensure!(!out.exists(), "an archive was written");
    Ok(())
}

#[test]
fn a_bill_of_materials_names_the_packages_of_the_images_layer() -> Result<()> {
    let folder = TempDir::new()?;
    let (bill, layer) = (folder.path().join("bill.json"), folder.path().join("layer.tar"));
    fs::write(&bill, json!({"bomFormat": "CycloneDX", "components": [{"name": "tokio"}]}).to_string())?;
    let packages = folder.path().join("var/lib/dpkg/status.d");
    fs::create_dir_all(&packages)?;
    fs::write(
        packages.join("libc6"),
        "Package: libc6\nVersion: 1:2.36-9+deb12u14\nArchitecture: arm64\nDescription: GNU C Library\n runs programs\n",
    )?;
    let of_layer = || {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/sbom-of-layer");
        Command::new(script).arg(&bill).arg(&layer).output()
    };
    let pack =
        || Command::new("tar").arg("-cf").arg(&layer).arg("-C").arg(folder.path()).arg("./var").status();
    ensure!(pack()?.success(), "tar");

    let made = of_layer()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let purl = "pkg:deb/debian/libc6@1%3A2.36-9%2Bdeb12u14?arch=arm64";
    let libc = json!({"type": "library", "bom-ref": purl, "name": "libc6", "version": "1:2.36-9+deb12u14", "purl": purl});
    let whole = json!({"bomFormat": "CycloneDX", "components": [{"name": "tokio"}, libc]});
    assert_eq!(serde_json::from_slice::<Value>(&made.stdout)?, whole);

    // A layer without them would give a bill that says less than the image holds.
    fs::remove_file(packages.join("libc6"))?;
    ensure!(pack()?.success(), "tar");
    let none = of_layer()?;
    ensure!(!none.status.success() && none.stdout.is_empty(), "{none:?}");
    ensure!(String::from_utf8_lossy(&none.stderr).contains("no package"), "{none:?}");
    Ok(())
}
