// For build scripts, which include this file after compile.rs: writes the Rust side of the C structures that
// BPF programs share with their loader.
//
// Problem: Kernel and loader use the same memory. A mirror of the C structures that is written by hand can be
//          wrong, and has to be held to them field by field.
// How:     An object that has the wanted structures and constants is compiled; no program in it is loaded.
//          From its BTF, the compiler's own description, each structure is written as repr(C) with the same
//          fields. What the C compiler leaves free is a field as well, so that all bytes are integers.
// Limits:  Fields are integers, structures and arrays of these; constants are not negative. BTF has no
//          comments: the C header says what a field means. It has no alignment either, so that a structure
//          has its fields'; memory that is aligned to cache lines is C's, which the loader maps.

use libbpf_rs::btf::types::{Array, Enum, Int, IntEncoding, MemberAttr, Struct};
use libbpf_rs::btf::{Btf, BtfType};
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

/// What BPF programs share with their loader.
struct Shared {
    /// A C file of the crate that declares all of it.
    header: &'static str,
    /// Structures that the loader copies: their fields become integers.
    copied: &'static [&'static str],
    /// Structures in memory that kernel and loader use at the same time: their fields become atomics.
    mapped: &'static [&'static str],
    /// Constants, macros or enumerators, by the Rust type that they are to have.
    constants: &'static [(&'static str, &'static [&'static str])],
}

/// Writes the Rust side of `shared` into the output folder's file `shared.rs`; ends the build with a message
/// if that fails.
fn write_shared(shared: &Shared) {
    let text = rust_of(shared).unwrap_or_else(|error| {
        fail(&format!("reading what {} declares: {error}", shared.header))
    });
    let path = out_dir().join("shared.rs");
    if let Err(error) = std::fs::write(&path, text) {
        fail(&format!("writing {}: {error}", path.display()));
    }
}

/// The Rust source.
fn rust_of(shared: &Shared) -> Result<String, String> {
    let folder = env::var("CARGO_MANIFEST_DIR").map_err(said)?;
    let names = || shared.constants.iter().flat_map(|(_, names)| *names);
    let mut source = format!("#include \"{folder}/{}\"\nstruct shared {{\n", shared.header);
    for name in shared.copied.iter().chain(shared.mapped) {
        source += &format!("struct {name} {name};\n");
    }
    source += "} shared;\nenum shared_constants {\n";
    // In two halves: BTF of clang 14 has enumerators of 32 bits.
    for name in names() {
        source += &format!("{name}_low = ({name}) & 0xffffffffULL,\n");
        source += &format!("{name}_high = (unsigned long long)({name}) >> 32,\n");
    }
    source += "} shared_constants;\n";
    let path = out_dir().join("shared.bpf.c");
    std::fs::write(&path, source).map_err(said)?;
    compile(&path, "shared.bpf.o", &[]);

    let btf = Btf::from_path(out_dir().join("shared.bpf.o")).map_err(said)?;
    let constants: Enum<'_> = btf.type_by_name("shared_constants").ok_or("no constants")?;
    let halves: Vec<i64> = constants.iter().map(|member| member.value).collect();
    let values = halves.chunks(2).map(|pair| pair[0] | pair[1] << 32);
    let mut text = String::new();
    let types = shared.constants.iter();
    let types = types.flat_map(|(ty, names)| names.iter().map(move |_| ty));
    for ((name, ty), value) in names().zip(types).zip(values) {
        text += &format!("/// The C constant `{name}`.\npub const {name}: {ty} = {value};\n");
    }
    let all: Struct<'_> = btf.type_by_name("shared").ok_or("no structures")?;
    let mut writer = Writer {
        btf: &btf,
        mapped: false,
        written: BTreeMap::new(),
        text,
    };
    for (at, member) in all.iter().enumerate() {
        writer.mapped = at >= shared.copied.len();
        writer.type_of(btf.type_by_id(member.ty).ok_or("no type")?, "")?;
    }
    Ok(writer.text)
}

struct Writer<'a> {
    btf: &'a Btf<'a>,
    /// Whether fields become atomics.
    mapped: bool,
    /// The structures in `text`, and whether their fields are atomics.
    written: BTreeMap<String, bool>,
    text: String,
}

impl Writer<'_> {
    /// The Rust type of a C type, and its size in bytes. `place`: the name of a structure that has none in C.
    fn type_of(&mut self, ty: BtfType<'_>, place: &str) -> Result<(String, usize), String> {
        let ty = ty.skip_mods_and_typedefs();
        if let Ok(int) = Int::try_from(ty) {
            let character = int.name().is_some_and(|name| name == "char");
            let signed = matches!(int.encoding, IntEncoding::Signed) && !character;
            return Ok((self.integer(int.bits.into(), signed), usize::from(int.bits) / 8));
        }
        if let Ok(array) = Array::try_from(ty) {
            let (element, bytes) = self.type_of(array.contained_type(), place)?;
            let length = array.capacity();
            return Ok((format!("[{element}; {length}]"), length * bytes));
        }
        let found = Struct::try_from(ty).map_err(|_| format!("{place} has a type of no kind known"))?;
        let name = match found.name() {
            Some(name) => camel(&name.to_string_lossy()),
            None => place.to_string(),
        };
        let bytes = self.structure(&found, &name)?;
        Ok((name, bytes))
    }

    /// Writes a structure, unless it is written already. Returns its size in bytes.
    fn structure(&mut self, found: &Struct<'_>, name: &str) -> Result<usize, String> {
        use libbpf_rs::btf::HasSize as _;
        let (mut fields, mut checks, mut end) = (String::new(), String::new(), 0);
        for member in found.iter() {
            let MemberAttr::Normal { offset } = member.attr else {
                return Err(format!("{name} has a bit field"));
            };
            let at = offset as usize / 8;
            let field = member.name.ok_or(format!("{name} has a field without a name"))?;
            let field = field.to_string_lossy();
            let ty = self.btf.type_by_id(member.ty).ok_or("no type")?;
            let (ty, bytes) = self.type_of(ty, &format!("{name}{}", camel(&field)))?;
            fields += &self.padding(end, at);
            fields += &format!("    pub {field}: {ty},\n");
            checks += &format!("    assert!(std::mem::offset_of!({name}, {field}) == {at});\n");
            end = at + bytes;
        }
        let size = found.size();
        fields += &self.padding(end, size);
        match self.written.insert(name.to_string(), self.mapped) {
            None => {}
            Some(mapped) if mapped == self.mapped => return Ok(size),
            Some(_) => return Err(format!("{name} is in a copied structure and in a mapped one")),
        }
        let (derived, marker) = match self.mapped {
            true => ("Debug", "Shared"),
            false => ("Debug, Clone, Copy, PartialEq, Eq", "Plain"),
        };
        let c_name = found.name().map_or("struct".into(), |it| format!("struct {}", it.to_string_lossy()));
        write!(
            self.text,
            "/// The C `{c_name}`.\n#[derive({derived})]\n#[repr(C)]\npub struct {name} {{\n{fields}}}\n\
             const _: () = {{\n    assert!(size_of::<{name}>() == {size});\n{checks}}};\n\
             // SAFETY: the fields are integers, or atomics, and fill the structure.\n\
             unsafe impl quell_bpf::{marker} for {name} {{}}\n\
             impl Default for {name} {{\n    fn default() -> {name} {{\n        \
             // SAFETY: zero bytes are a value of each field.\n        \
             unsafe {{ std::mem::zeroed() }}\n    }}\n}}\n"
        )
        .map_err(said)?;
        Ok(size)
    }

    /// The field for the bytes that C leaves free.
    fn padding(&self, from: usize, to: usize) -> String {
        match to - from {
            0 => String::new(),
            bytes => format!("    pub padding_{from}: [{}; {bytes}],\n", self.integer(8, false)),
        }
    }

    fn integer(&self, bits: usize, signed: bool) -> String {
        match (self.mapped, signed) {
            (true, true) => format!("std::sync::atomic::AtomicI{bits}"),
            (true, false) => format!("std::sync::atomic::AtomicU{bits}"),
            (false, true) => format!("i{bits}"),
            (false, false) => format!("u{bits}"),
        }
    }
}

/// `CpuCtx` of `cpu_ctx`.
fn camel(name: &str) -> String {
    name.split('_')
        .filter_map(|word| word.split_at_checked(1))
        .map(|(first, rest)| first.to_uppercase() + rest)
        .collect()
}

fn said(error: impl Display) -> String {
    error.to_string()
}
