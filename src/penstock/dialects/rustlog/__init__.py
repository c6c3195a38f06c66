"""RustLog: length-prefixed frames that hold JSON or a binary request, told apart by their first byte."""
