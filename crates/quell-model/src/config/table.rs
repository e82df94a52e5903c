//! Tables whose keys are declared in several types, such as the `[[tenant]]` tables of different files.
//!
//! Serde's `flatten` would buffer such a table: an unknown key would pass, and an error in a value would name
//! neither its key nor its line. [`read`] hands each value to the type that declares its key.

use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// A table, or a part of one, that is filled key by key. Its default has the default of every key.
pub trait Table: Default {
    /// The keys, in the order in which messages list them.
    fn keys() -> Vec<&'static str>;

    /// The keys that must be given.
    fn required() -> Vec<&'static str> {
        Vec::new()
    }

    /// Reads the value of one of the keys; `values` stands at the value.
    ///
    /// # Errors
    /// The value does not fit the key, or the key is none of [`Table::keys`].
    fn read<'de, M: MapAccess<'de>>(
        &mut self,
        key: &'static str,
        values: &mut M,
    ) -> Result<(), M::Error>;
}

/// One table that two types declare, with no key in common.
impl<A: Table, B: Table> Table for (A, B) {
    fn keys() -> Vec<&'static str> {
        [A::keys(), B::keys()].concat()
    }

    fn required() -> Vec<&'static str> {
        [A::required(), B::required()].concat()
    }

    fn read<'de, M: MapAccess<'de>>(
        &mut self,
        key: &'static str,
        values: &mut M,
    ) -> Result<(), M::Error> {
        if A::keys().contains(&key) {
            self.0.read(key, values)
        } else {
            self.1.read(key, values)
        }
    }
}

/// Reads the next value of a table into `field`.
///
/// # Errors
/// The value is no `T`.
pub fn read_into<'de, T: Deserialize<'de>, M: MapAccess<'de>>(
    field: &mut T,
    values: &mut M,
) -> Result<(), M::Error> {
    *field = values.next_value()?;
    Ok(())
}

/// The error of a [`Table::read`] for a key that the table does not have.
pub fn foreign<E: Error>(key: &str) -> E {
    E::custom(format!("the table has no key `{key}`"))
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
        let keys = T::keys();
        let mut table = T::default();
        let mut given: Vec<&'static str> = Vec::new();
        while let Some(key) = values.next_key_seed(OneOf(&keys))? {
            if given.contains(&key) {
                return Err(M::Error::duplicate_field(key));
            }
            given.push(key);
            table.read(key, &mut values)?;
        }
        match T::required().iter().find(|key| !given.contains(key)) {
            Some(missing) => Err(M::Error::missing_field(missing)),
            None => Ok(table),
        }
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
