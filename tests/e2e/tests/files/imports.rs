//! Modules are layered: within a crate no module imports a sibling that imports it in turn. Tests are left out; a parent module
//! and its children may import each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, UseTree};

/// A module's path within its crate; the root is empty.
pub(crate) type Module = Vec<String>;

/// Paths that a file imports or spells out, from the module that does.
#[derive(Default)]
struct Imports {
    module: Module,
    found: Vec<(Module, Vec<String>)>,
}

impl Imports {
    fn add(&mut self, path: Vec<String>) {
        self.found.push((self.module.clone(), path));
    }

    fn add_use(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: String| before.iter().cloned().chain([name]).collect::<Vec<_>>();
        match tree {
            UseTree::Path(path) => self.add_use(&with(path.ident.to_string()), &path.tree),
            UseTree::Name(name) => self.add(with(name.ident.to_string())),
            UseTree::Rename(name) => self.add(with(name.ident.to_string())),
            UseTree::Glob(_) => self.add(before.to_vec()),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.add_use(before, item)),
        }
    }
}

/// `#[cfg(test)]` is one of them.
pub(crate) fn only_in_tests(attributes: &[Attribute]) -> bool {
    let says_test = |a: &Attribute| a.parse_args::<syn::Ident>().is_ok_and(|argument| argument == "test");
    attributes.iter().any(|a| a.path().is_ident("cfg") && says_test(a))
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Const(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !only_in_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_use(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.add(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    /// `pub(in path)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

/// Source files below a folder, tests left out, by module.
pub(crate) fn sources(folder: &Path, module: &Module, into: &mut BTreeMap<Module, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if name == "tests" || name.ends_with("_tests") {
            continue;
        }
        let mut inner = module.clone();
        if path.is_dir() {
            inner.push(name);
            sources(&path, &inner, into)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            if !["lib", "main", "mod"].contains(&name.as_str()) {
                inner.push(name);
            }
            into.insert(inner, path);
        }
    }
    Ok(())
}

/// Names that a module takes from another one, where others find them too.
type Exports = BTreeMap<(Module, String), Module>;

/// The module that a path leads to, if it is one of the crate's, and the names that are left of the path.
fn target<'a>(
    modules: &BTreeMap<Module, PathBuf>,
    from: &Module,
    path: &'a [String],
) -> Option<(Module, &'a [String])> {
    let (mut at, mut rest) = match path.first()?.as_str() {
        "crate" => (Vec::new(), &path[1..]),
        "self" => (from.clone(), &path[1..]),
        "super" => (from.clone(), path),
        _ => (from.clone(), path),
    };
    while let Some(("super", further)) = rest.split_first().map(|(first, further)| (first.as_str(), further))
    {
        at.pop()?;
        rest = further;
    }
    let begin = at.clone();
    while let Some((name, further)) = rest.split_first() {
        at.push(name.clone());
        if !modules.contains_key(&at) {
            at.pop();
            break;
        }
        rest = further;
    }
    // A name of another crate leads nowhere; one that goes up does, even without a further module.
    (at != begin || matches!(path[0].as_str(), "crate" | "super")).then_some((at, rest))
}

/// Imports between modules of the same parent, as `parent -> {importer -> {imported}}`.
type Levels = BTreeMap<Module, BTreeMap<String, BTreeSet<String>>>;

fn levels(modules: &BTreeMap<Module, PathBuf>) -> Result<Levels> {
    let mut found = Vec::new();
    let mut exports = Exports::new();
    for (module, file) in modules {
        let text = fs::read_to_string(file)?;
        let parsed: File = syn::parse_file(&text).with_context(|| format!("parsing {}", file.display()))?;
        let mut imports = Imports { module: module.clone(), ..Imports::default() };
        imports.visit_file(&parsed);
        for (from, path) in imports.found {
            let Some((to, rest)) = target(modules, &from, &path) else { continue };
            if let [name] = rest {
                exports.insert((from, name.clone()), to.clone());
            }
            found.push((module, to, rest.first().cloned()));
        }
    }
    let mut levels = Levels::new();
    for (module, mut to, name) in found {
        // What a parent re-exports comes from where the parent has it.
        if let Some(source) =
            name.and_then(|name| exports.get(&(to.clone(), name))).filter(|_| module.starts_with(&to))
        {
            to.clone_from(source);
        }
        let shared = module.iter().zip(&to).take_while(|(one, other)| one == other).count();
        let (Some(importer), Some(imported)) = (module.get(shared), to.get(shared)) else { continue };
        let parent = levels.entry(module[..shared].to_vec()).or_default();
        parent.entry(importer.clone()).or_default().insert(imported.clone());
    }
    Ok(levels)
}

/// The edges of a graph that lie on a circle.
fn circles(graph: &BTreeMap<String, BTreeSet<String>>) -> Vec<(String, String)> {
    let leads_to = |from: &String, to: &String| {
        let (mut seen, mut ahead) = (BTreeSet::from([from]), vec![from]);
        while let Some(module) = ahead.pop() {
            ahead.extend(graph.get(module).into_iter().flatten().filter(|next| seen.insert(next)));
        }
        seen.contains(to)
    };
    let edges = graph.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to)));
    edges.filter(|(from, to)| leads_to(to, from)).map(|(from, to)| (from.clone(), to.clone())).collect()
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn crates() -> Result<Vec<PathBuf>> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let members = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next());
    let names = members.context("the workspace has members")?.split('"').skip(1).step_by(2);
    Ok(names.map(|name| root().join(name)).collect())
}

#[test]
fn no_crate_has_modules_that_import_each_other_in_a_circle() -> Result<()> {
    let mut found = Vec::new();
    let mut imports = 0;
    let crates = crates()?;
    ensure!(crates.len() > 10, "{} crates", crates.len());
    for folder in crates {
        let mut modules = BTreeMap::new();
        sources(&folder.join("src"), &Module::new(), &mut modules)?;
        for (parent, graph) in levels(&modules)? {
            imports += graph.values().map(BTreeSet::len).sum::<usize>();
            for (importer, imported) in circles(&graph) {
                let name = folder.strip_prefix(root()).unwrap_or(&folder).display().to_string();
                found.push(format!("{name} {}: {importer} -> {imported}", parent.join("::")));
            }
        }
    }
    ensure!(imports > 300, "only {imports} imports were seen: the reading is wrong");
    ensure!(found.is_empty(), "modules that import each other in a circle:\n{}", found.join("\n"));
    Ok(())
}

#[test]
fn a_circle_is_found_and_what_hangs_on_it_is_not_blamed() {
    let found = |edges: &[(&str, &str)]| {
        let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in edges {
            graph.entry((*from).into()).or_default().insert((*to).into());
        }
        circles(&graph).into_iter().map(|(from, to)| from + &to).collect::<Vec<_>>()
    };
    assert_eq!(found(&[("a", "b"), ("b", "c"), ("a", "c")]), [""; 0]);
    assert_eq!(found(&[("user", "a"), ("a", "b"), ("b", "a"), ("b", "leaf")]), ["ab", "ba"]);
}

#[test]
fn files_of_one_folder_are_read_too() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = |module: &str, text: &str| -> Result<(Module, PathBuf)> {
        let path = folder.path().join(module);
        fs::write(&path, text)?;
        Ok((split(module), path))
    };
    let modules = BTreeMap::from([
        file("a", "mod b; mod c; use b::Thing;")?,
        file("a::b", "use super::c::Other;")?,
        file("a::c", "fn f(_: super::Thing) {}")?,
    ]);
    let found = circles(&levels(&modules)?[&split("a")]);
    assert_eq!(found, [("b".to_owned(), "c".to_owned()), ("c".to_owned(), "b".to_owned())]);
    Ok(())
}

#[test]
fn imports_are_read_as_the_compiler_does() -> Result<()> {
    let modules: BTreeMap<Module, PathBuf> =
        ["", "a", "b", "b::c"].iter().map(|path| (split(path), PathBuf::new())).collect();
    let seen = |module: &str, text: &str| -> Result<Vec<Module>> {
        let mut imports = Imports { module: split(module), ..Imports::default() };
        imports.visit_file(&syn::parse_file(text)?);
        let found = imports.found.iter();
        Ok(found.filter_map(|(from, path)| target(&modules, from, path)).map(|(module, _)| module).collect())
    };
    assert_eq!(seen("a", "use crate::b::{c::Thing, Other};")?, [split("b::c"), split("b")]);
    assert_eq!(seen("b::c", "fn f() -> super::super::a::Kind { a::b::c() }")?, [split("a")]);
    assert_eq!(seen("b", "use std::fmt; mod c; use c::Thing;")?, [split("b::c")]);
    assert_eq!(seen("a", "#[cfg(test)] mod tests { use crate::b::Thing; }")?, Vec::<Module>::new());
    assert_eq!(
        seen("a", "#[cfg(test)] use crate::b::Thing; pub(in crate::b) fn f() {}")?,
        Vec::<Module>::new()
    );
    Ok(())
}

fn split(path: &str) -> Module {
    path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Our crates in `[dependencies]`, without the common beginning of their names.
fn dependencies(manifest: &str) -> BTreeSet<&str> {
    let section =
        manifest.split("\n[").find_map(|part| part.strip_prefix("dependencies]\n")).unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split(['.', ' ']).next()?.strip_prefix("andreas-"));
    names.collect()
}

#[test]
fn the_page_of_the_architecture_has_the_dependencies_of_each_crate() -> Result<()> {
    let page = fs::read_to_string(root().join("docs/architecture.md"))?;
    let table = page.split("| crate | uses | what it is |").nth(1).context("no table of crates")?;
    let mut before = BTreeSet::new();
    for line in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (name, uses) = (cells[1].trim_matches('`'), cells[2]);
        let written: BTreeSet<&str> = uses.split(", ").filter(|name| *name != "-").collect();
        let folder = [format!("crates/{name}"), name.to_owned()].map(|folder| root().join(folder));
        let folder = folder.iter().find(|folder| folder.is_dir()).with_context(|| name.to_owned())?;
        let manifest = fs::read_to_string(folder.join("Cargo.toml"))?;
        ensure!(dependencies(&manifest) == written, "{name} uses {:?}", dependencies(&manifest));
        ensure!(written.is_subset(&before), "{name} stands above one of {written:?}");
        before.insert(name);
    }
    let folders = fs::read_dir(root().join("crates"))?.count() + 4;
    ensure!(before.len() == folders, "{} crates in the table, {folders} folders", before.len());
    Ok(())
}
