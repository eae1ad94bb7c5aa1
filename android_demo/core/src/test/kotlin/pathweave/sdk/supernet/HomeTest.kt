package pathweave.sdk.supernet

import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import pathweave.sdk.Contract
import pathweave.sdk.UsageError
import pathweave.sdk.assertRefused
import pathweave.sdk.get
import pathweave.sdk.int
import pathweave.sdk.items
import pathweave.sdk.text
import pathweave.sdk.texts

class HomeTest {
    private val vectors = Contract.vectors["homes"]

    @TestFactory
    fun `homes are read and written the same everywhere`() = vectors["read"].items.map { case ->
        DynamicTest.dynamicTest(case["text"].text) {
            val home = Home.parse(case["text"].text)
            assertEquals(Home(case["provider"].text, case["threads"].int, case["cluster"].text), home)
            assertEquals(case["text"].text, home.toString())
        }
    }

    @Test
    fun `what is no home is refused everywhere`() {
        for (text in vectors["refused"].texts) assertRefused<UsageError> { Home.parse(text) }
    }

    @Test
    fun `providers have the same short names everywhere`() {
        assertEquals(vectors["providers"].jsonObject.mapValues { it.value.text }, PROVIDERS)
    }

    @Test
    fun `only the processor needs no provider`() {
        assertTrue(Home.parse("cpu-2t").onProcessor)
        assertEquals(listOf(CPU), PROVIDERS.keys.filter { Home(it).onProcessor })
    }
}
