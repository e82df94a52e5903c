//! Tables whose keys are declared in several types, such as the `[[tenant]]` tables of different files.
//!
//! Serde's `flatten` would buffer such a table: an unknown key would pass, and an error in a value would name
//! neither its key nor its line. [`read`] hands each value to the type that declares its key.

use serde::de::value::{self, UnitDeserializer};
use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// A table, or a part of one, that is filled key by key. Its default has the default of every key.
pub trait Table: Default {
    /// Names every key with the field that it fills, in the order in which messages list the keys.
    ///
    /// # Errors
    /// The value that `keys` has for one of them does not fit.
    fn fields<'de, D: Deserializer<'de>>(&mut self, keys: &mut Keys<D>) -> Result<(), D::Error>;
}

/// One table that two types declare, with no key in common.
impl<A: Table, B: Table> Table for (A, B) {
    fn fields<'de, D: Deserializer<'de>>(&mut self, keys: &mut Keys<D>) -> Result<(), D::Error> {
        self.0.fields(keys)?;
        self.1.fields(keys)
    }
}

/// The keys that a [`Table`] names, and a value for one of them.
pub struct Keys<D> {
    names: Vec<&'static str>,
    required: Vec<&'static str>,
    /// A key and its value, until a table names the key.
    value: Option<(&'static str, D)>,
}

impl<'de, D: Deserializer<'de>> Keys<D> {
    fn new(value: Option<(&'static str, D)>) -> Keys<D> {
        Keys {
            names: Vec::new(),
            required: Vec::new(),
            value,
        }
    }

    /// Names a key that must be given.
    ///
    /// # Errors
    /// The value is this key's and no `T`.
    pub fn required<T: Deserialize<'de>>(
        &mut self,
        name: &'static str,
        field: &mut T,
    ) -> Result<(), D::Error> {
        self.required.push(name);
        self.optional(name, field)
    }

    /// Names a key that may be left out.
    ///
    /// # Errors
    /// The value is this key's and no `T`.
    pub fn optional<T: Deserialize<'de>>(
        &mut self,
        name: &'static str,
        field: &mut T,
    ) -> Result<(), D::Error> {
        self.read_by(T::deserialize, name, field)
    }

    /// Names a key that may be left out and whose value `read` reads.
    ///
    /// # Errors
    /// The value is this key's and `read` fails.
    pub fn read_by<T>(
        &mut self,
        read: impl FnOnce(D) -> Result<T, D::Error>,
        name: &'static str,
        field: &mut T,
    ) -> Result<(), D::Error> {
        self.names.push(name);
        if let Some((_, value)) = self.value.take_if(|(key, _)| *key == name) {
            *field = read(value)?;
        }
        Ok(())
    }
}

/// The keys of a table, in the order in which messages list them.
pub fn keys<T: Table>() -> Vec<&'static str> {
    named::<T>().names
}

/// What a table names, without a value.
fn named<T: Table>() -> Keys<UnitDeserializer<value::Error>> {
    let mut keys = Keys::new(None);
    // Only reading a value can fail.
    let _ = T::default().fields(&mut keys);
    keys
}

/// Reads a whole table. It is the `deserialize` of types that are a [`Table`].
///
/// # Errors
/// A key is unknown or stands twice, a value does not fit its key, or a required key is missing.
pub fn read<'de, T: Table, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_map(TableVisitor(PhantomData))
}

struct TableVisitor<T>(PhantomData<T>);

impl<'de, T: Table> Visitor<'de> for TableVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut values: M) -> Result<T, M::Error> {
        let known = named::<T>();
        let mut table = T::default();
        let mut given: Vec<&'static str> = Vec::new();
        while let Some(key) = values.next_key_seed(OneOf(&known.names))? {
            if given.contains(&key) {
                return Err(M::Error::duplicate_field(key));
            }
            given.push(key);
            let table = &mut table;
            values.next_value_seed(ValueOf { key, table })?;
        }
        match known.required.iter().find(|key| !given.contains(key)) {
            Some(missing) => Err(M::Error::missing_field(missing)),
            None => Ok(table),
        }
    }
}

/// Reads the value of a key into the table's field.
struct ValueOf<'a, T> {
    key: &'static str,
    table: &'a mut T,
}

impl<'de, T: Table> DeserializeSeed<'de> for ValueOf<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let value = Some((self.key, deserializer));
        self.table.fields(&mut Keys::new(value))
    }
}

/// Reads a key that is one of these. An unknown key is an error of the key itself, so that the error is at
/// the key's place.
struct OneOf<'a>(&'a [&'static str]);

impl<'de> DeserializeSeed<'de> for OneOf<'_> {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for OneOf<'_> {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key of the table")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<&'static str, E> {
        let known = self.0.iter().find(|known| **known == key);
        known.copied().ok_or_else(|| {
            // The words of serde's own error for structures.
            let known: Vec<String> = self.0.iter().map(|known| format!("`{known}`")).collect();
            let known = known.join(", ");
            E::custom(format!("unknown field `{key}`, expected one of {known}"))
        })
    }
}
