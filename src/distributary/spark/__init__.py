"""A Java, a quiet JVM, a session: what it takes to have Spark."""
