//! Tokens and registers of single instruction sets. A token exists only where detection found the instructions;
//! nothing else in this crate is unsafe.

/// Compiles all kernels and operations for one instruction set: methods of the token that enter code in which its
/// features are enabled. `operations!` supplies the list.
macro_rules! compile {
    (
        [$token:ident $features:literal]
        kernels { $(fn $kernel:ident($($operand:ident: $operand_type:ty),* $(,)?);)* }
        reference { $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $output:ty)?;)* }
    ) => {
        impl $token {
            $(
                #[allow(clippy::too_many_arguments, reason = "the operands of one formula")]
                pub(crate) fn $kernel(self, $($operand: $operand_type),*) {
                    #[target_feature(enable = $features)]
                    #[allow(clippy::too_many_arguments, reason = "the operands of one formula")]
                    fn compiled(v: $token, $($operand: $operand_type),*) {
                        crate::vector::$kernel(v, $($operand),*)
                    }
                    // SAFETY: only `detect` makes a token, after it found these features.
                    unsafe { compiled(self, $($operand),*) }
                }
            )*
            $(
                #[allow(clippy::too_many_arguments, reason = "the operands of one formula")]
                pub(crate) fn $name(self, $($argument: $type),*) $(-> $output)? {
                    #[target_feature(enable = $features)]
                    #[allow(clippy::too_many_arguments, reason = "the operands of one formula")]
                    fn compiled($($argument: $type),*) $(-> $output)? {
                        crate::reference::$name($($argument),*)
                    }
                    // SAFETY: only `detect` makes a token, after it found these features.
                    unsafe { compiled($($argument),*) }
                }
            )*
        }
    };
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod aarch64;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;
