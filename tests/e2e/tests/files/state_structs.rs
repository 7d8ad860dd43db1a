//! State is small and has one writer. A *state struct* is a struct of the product that changes: it has a method with `&mut self`,
//! or methods and a lock of its own. One that is read or written as a file, a message or a command line is none. It has at most
//! [`MOST`] fields. In programs that run in the cluster its fields are private to its module, so that no other module writes them.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use syn::visit::{self, Visit};
use syn::{Attribute, Field, FnArg, ImplItem, Receiver, Type, Visibility};

use crate::imports::{Module, crates, only_in_tests, root, sources};

/// Fields of the largest state struct.
const MOST: usize = 11;

/// State structs with more fields: file, name and reason.
const LARGE: [(&str, &str, &str); 1] = [(
    "crates/planner/src/lookahead/cost_table.rs",
    "CostTable",
    "it is filled while it is made and only read afterwards: its columns could be made by a function",
)];

/// The programs that run in the cluster, and what they share.
const ONE_WRITER: [&str; 4] = ["operator", "extender", "node-agent", "crates/runtime"];

/// Their state structs with fields that other modules write: file, name and reason.
const MORE_WRITERS: [(&str, &str, &str); 1] = [(
    "operator/src/lifecycle/draft.rs",
    "Draft",
    "it lives within one step, and each part of the lifecycle adds to the status that the step returns",
)];

/// Derived by what is read or written as a file, a message or a command line.
const FORMATS: [&str; 5] = ["Args", "CustomResource", "Deserialize", "Parser", "Serialize"];

/// Types whose contents change behind a shared reference; atomics are others.
const LOCKS: [&str; 6] = ["Cell", "Mutex", "OnceLock", "RefCell", "RwLock", "Sender"];

/// A struct, with what the rules ask about it.
struct Struct {
    module: Module,
    name: String,
    fields: usize,
    /// Names of the fields that another module can write.
    open: Vec<String>,
    /// Has a lock of its own.
    locks: bool,
    /// Is read or written as a file, a message or a command line.
    format: bool,
    /// Has a method, and one with `&mut self`.
    methods: (bool, bool),
}

impl Struct {
    fn is_state(&self) -> bool {
        let (any, mutable) = self.methods;
        !self.format && (mutable || any && self.locks)
    }
}

/// An `impl` block: where it stands, and what it adds to its type.
struct Impl {
    module: Module,
    name: String,
    format: bool,
    methods: (bool, bool),
}

/// The structs and `impl` blocks of a crate.
#[derive(Default)]
struct Items {
    module: Module,
    structs: Vec<Struct>,
    impls: Vec<Impl>,
}

fn last(path: &syn::Path) -> String {
    path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
}

/// Whether a trait of [`FORMATS`] is derived, also behind `cfg_attr`.
fn derives_format(attributes: &[Attribute]) -> bool {
    let mut found = false;
    let lists = attributes.iter().filter(|a| a.path().is_ident("derive") || a.path().is_ident("cfg_attr"));
    for list in lists {
        // What is no list of paths derives nothing.
        let _ = list.parse_nested_meta(|meta| {
            found |= FORMATS.contains(&last(&meta.path).as_str());
            if meta.input.peek(syn::token::Paren) {
                meta.parse_nested_meta(|inner| {
                    found |= FORMATS.contains(&last(&inner.path).as_str());
                    Ok(())
                })?;
            }
            Ok(())
        });
    }
    found
}

fn is_lock(field: &Field) -> bool {
    let Type::Path(path) = &field.ty else { return false };
    let name = last(&path.path);
    LOCKS.contains(&name.as_str()) || name.starts_with("Atomic")
}

fn receiver(item: &ImplItem) -> Option<&Receiver> {
    let ImplItem::Fn(method) = item else { return None };
    match method.sig.inputs.first()? {
        FnArg::Receiver(receiver) if !only_in_tests(&method.attrs) => Some(receiver),
        _ => None,
    }
}

impl<'ast> Visit<'ast> for Items {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if only_in_tests(&item.attrs) {
            return;
        }
        let name = |(at, field): (usize, &Field)| {
            field.ident.as_ref().map_or_else(|| at.to_string(), ToString::to_string)
        };
        let fields = item.fields.iter().enumerate();
        let open = fields.filter(|(_, field)| !matches!(field.vis, Visibility::Inherited)).map(name);
        self.structs.push(Struct {
            module: self.module.clone(),
            name: item.ident.to_string(),
            fields: item.fields.len(),
            open: open.collect(),
            locks: item.fields.iter().any(is_lock),
            format: derives_format(&item.attrs),
            methods: (false, false),
        });
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if only_in_tests(&item.attrs) {
            return;
        }
        if let Type::Path(path) = &*item.self_ty {
            let mutable = |r: &Receiver| r.reference.is_some() && r.mutability.is_some();
            let receivers: Vec<&Receiver> = item.items.iter().filter_map(receiver).collect();
            let of_trait = item.trait_.as_ref().map(|(_, path, _)| last(path));
            self.impls.push(Impl {
                module: self.module.clone(),
                name: last(&path.path),
                format: of_trait.is_some_and(|name| FORMATS.contains(&name.as_str())),
                methods: (!receivers.is_empty(), receivers.into_iter().any(mutable)),
            });
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if only_in_tests(&item.attrs) {
            return;
        }
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }
}

/// The state structs of a crate, whose modules are given as texts.
fn state_structs(modules: &BTreeMap<Module, String>) -> Result<Vec<Struct>> {
    let mut items = Items::default();
    for (module, text) in modules {
        items.module.clone_from(module);
        items.visit_file(&syn::parse_file(text).with_context(|| module.join("::"))?);
    }
    for block in items.impls {
        // Of two structs with one name the nearer one is meant.
        let shared = |module: &Module| block.module.iter().zip(module).take_while(|(a, b)| a == b).count();
        let named = items.structs.iter_mut().filter(|each| each.name == block.name);
        let Some(found) = named.max_by_key(|each| (shared(&each.module), each.module == block.module)) else {
            continue;
        };
        found.methods.0 |= block.methods.0;
        found.methods.1 |= block.methods.1;
        found.format |= block.format;
    }
    Ok(items.structs.into_iter().filter(Struct::is_state).collect())
}

/// The state structs of those crates of the product that `wanted` takes by their folders, with their files.
fn of_the_product(wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, Struct)>> {
    let mut found = Vec::new();
    for folder in crates()? {
        let of_root =
            |path: &std::path::Path| path.strip_prefix(root()).unwrap_or(path).display().to_string();
        let name = of_root(&folder);
        if name.starts_with("tests/") || !wanted(&name) {
            continue;
        }
        let mut files = BTreeMap::new();
        sources(&folder.join("src"), &Module::new(), &mut files)?;
        let texts = files.iter().map(|(module, file)| Ok((module.clone(), fs::read_to_string(file)?)));
        for each in state_structs(&texts.collect::<Result<_>>()?)? {
            // A module within a file is not one of the files.
            let file = (0..=each.module.len()).rev().find_map(|length| files.get(&each.module[..length]));
            found.push((file.map(|file| of_root(file)).unwrap_or_default(), each));
        }
    }
    ensure!(found.len() > 20, "only {} state structs were seen: the reading is wrong", found.len());
    Ok(found)
}

/// Fails for each struct that breaks a rule and is no exception, and for each exception that breaks none.
fn check(rule: &str, broken: &[(&str, &str, String)], exceptions: &[(&str, &str, &str)]) -> Result<()> {
    let is_excepted = |file: &str, name: &str| exceptions.iter().any(|(f, n, _)| (*f, *n) == (file, name));
    let breaks = |file: &str, name: &str| broken.iter().any(|(f, n, _)| (*f, *n) == (file, name));
    let left = broken.iter().filter(|(file, name, _)| !is_excepted(file, name));
    let left: Vec<String> = left.map(|(file, name, how)| format!("{file}: {name} has {how}")).collect();
    ensure!(left.is_empty(), "{rule}:\n{}", left.join("\n"));
    let kept = exceptions.iter().find(|(file, name, _)| !breaks(file, name));
    ensure!(kept.is_none(), "no exception any more: {kept:?}");
    Ok(())
}

#[test]
fn no_state_struct_has_more_than_eleven_fields() -> Result<()> {
    let all = of_the_product(|_| true)?;
    let large = all.iter().filter(|(_, each)| each.fields > MOST);
    let how = |each: &Struct| format!("{} fields", each.fields);
    let large: Vec<_> = large.map(|(file, each)| (file.as_str(), each.name.as_str(), how(each))).collect();
    check(&format!("state structs with more than {MOST} fields"), &large, &LARGE)
}

#[test]
fn no_other_module_writes_the_fields_of_a_state_struct() -> Result<()> {
    let all = of_the_product(|folder| ONE_WRITER.contains(&folder))?;
    let open = all.iter().filter(|(_, each)| !each.open.is_empty());
    let how = |each: &Struct| format!("{} that are not private: {}", each.open.len(), each.open.join(", "));
    let open: Vec<_> = open.map(|(file, each)| (file.as_str(), each.name.as_str(), how(each))).collect();
    check("fields of state structs that other modules can write", &open, &MORE_WRITERS)
}

#[test]
fn what_changes_is_state_and_what_is_read_or_written_is_not() -> Result<()> {
    let found = |text: &str| -> Result<Vec<(String, usize, Vec<String>)>> {
        let all = state_structs(&BTreeMap::from([(Module::new(), text.to_owned())]))?;
        Ok(all.into_iter().map(|each| (each.name, each.fields, each.open)).collect())
    };
    let state = |name: &str, fields, open: &[&str]| {
        vec![(name.to_owned(), fields, open.iter().map(ToString::to_string).collect())]
    };
    assert_eq!(found("struct A { a: u8, pub b: u8 } impl A { fn f(&mut self) {} }")?, state("A", 2, &["b"]));
    assert_eq!(
        found("struct A(pub(crate) u8); impl Iterator for A { fn f(&mut self) {} }")?,
        state("A", 1, &["0"])
    );
    assert_eq!(found("struct A { a: sync::Mutex<u8> } impl A { fn f(&self) {} }")?, state("A", 1, &[]));
    for none in [
        "struct A { a: u8 } impl A { fn f(&self) {} fn g(mut self) {} }",
        "struct A { a: u8 } impl A { #[cfg(test)] fn f(&mut self) {} }",
        "struct A { a: Mutex<u8> } fn f(a: &mut A) {}",
        "struct A { a: Arc<Mutex<u8>> } impl A { fn f(&self) {} }",
        "#[derive(Clone, serde::Serialize)] struct A { a: u8 } impl A { fn f(&mut self) {} }",
        "#[cfg_attr(x, derive(Deserialize))] struct A { a: u8 } impl A { fn f(&mut self) {} }",
        "struct A { a: u8 } impl A { fn f(&mut self) {} } impl<'de> Deserialize<'de> for A {}",
        "#[cfg(test)] mod tests { struct A { a: u8 } impl A { fn f(&mut self) {} } }",
    ] {
        assert_eq!(found(none)?, [], "{none}");
    }
    Ok(())
}

#[test]
fn an_impl_in_another_module_is_of_the_nearer_struct_with_that_name() -> Result<()> {
    let modules = [
        ("a", "struct S { a: u8 }"),
        ("b", "struct S { a: u8, b: u8 }"),
        ("b::c", "impl S { fn f(&mut self) {} }"),
    ];
    let module = |path: &str| path.split("::").map(str::to_owned).collect::<Module>();
    let modules = modules.map(|(path, text)| (module(path), text.to_owned()));
    let found = state_structs(&BTreeMap::from(modules))?;
    assert_eq!(found.iter().map(|each| each.fields).collect::<Vec<_>>(), [2]);
    Ok(())
}

#[test]
fn a_struct_that_breaks_a_rule_is_named_and_an_exception_that_breaks_none_is_not_kept() {
    let exception = [("f.rs", "Large", "why")];
    let broken = |name| [("f.rs", name, "12 fields".to_owned())];
    assert!(check("too large", &broken("Large"), &exception).is_ok());
    let other = check("too large", &broken("Other"), &[]).expect_err("too large").to_string();
    assert_eq!(other, "too large:\nf.rs: Other has 12 fields");
    assert!(check("too large", &[], &exception).is_err());
}
